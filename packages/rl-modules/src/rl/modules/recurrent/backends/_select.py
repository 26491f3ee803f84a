"""Which back end computes sequences, and why."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rl.core import registry
from rl.core.errors import BackendError
from rl.core.interfaces import RecurrentBackend
from rl.core.registry import Answer
from rl.core.settings import settings
from rl.modules.recurrent._weights import Cell
from rl.modules.recurrent.backends._pad import PadBackend
from rl.modules.recurrent.backends._scan import ScanBackend
from rl.modules.recurrent.ops._kernels import TORCH

__all__ = ["AUTO", "Backend", "Found", "find_backend", "is_offered"]

AUTO = "auto"
_HOOK = "rl_recurrent_backend"
_OWN: dict[str, type[ScanBackend | PadBackend]] = {"scan": ScanBackend, "pad": PadBackend}
_INSTALL = {"triton": "pip install rl-recurrent-triton", "native": "pip install rl-native"}

Found = tuple[RecurrentBackend, "Backend"]


@dataclass(frozen=True)
class Backend:
    """Who computes, and why that one.

    Args:
        name: ``"scan"``, ``"pad"``, ``"triton"``, or what another plugin calls itself.
        distribution: the package that it comes from.
        why: a sentence.

    Example:
        >>> str(Backend("pad", "rl-modules", "asked for by name"))
        'pad of rl-modules: asked for by name'
    """

    name: str
    distribution: str
    why: str

    def __str__(self) -> str:
        return f"{self.name} of {self.distribution}: {self.why}"


def find_backend(who: str, cell: Cell, name: str, device: torch.device) -> Found:
    """A back end, and what is to be said about it.

    Args:
        who: for messages.
        cell: ``"lstm"`` or ``"gru"``.
        name: of one, or ``"auto"`` for the first that answers.
        device: where weights and data live.

    Raises:
        BackendError: if the one that was asked for does not answer here; says how to install it.
    """
    asked = None if name == AUTO else name
    found = registry.default().answer(_HOOK, cell=cell, name=asked, device=device)
    if found is None and name in _OWN:  # our own declaration was left out, which takes nothing away from whoever asks
        return _OWN[name](), Backend(name, "rl-modules", "asked for by name")
    if found is None:
        raise BackendError(_absent(who, cell, name, device))
    said = getattr(found.value, "why", "")
    reason = "asked for by name" if asked else _first(who, found, device)
    why = f"{reason}{f' ({said})' if said else ''}"
    return found.value, Backend(found.value.name, found.plugin.distribution, why)


def is_offered(name: str) -> bool:
    """Whether a plugin lists such a back end, which may answer for another device."""
    return any(component.name == name for component in registry.default().components("recurrent_backend"))


def _first(who: str, found: Answer, device: torch.device) -> str:
    reason = f"the first that answers for {device.type}"
    if device.type != "cpu" or getattr(found.value, "kernels", None) != TORCH:
        return reason
    passed = any(plugin.startswith("rl-native:") for plugin in found.passed)
    mode = settings().native
    absent = "rl-native does not answer" if passed else f"without rl-native, `{_INSTALL['native']}`"
    if mode == "require":
        remedy = "`rl doctor` says why" if passed else _INSTALL["native"]
        raise BackendError(f"{who}: RL_NATIVE=require, and rl-native does not compute recurrent layers: {remedy}")
    return f"{reason}, {'RL_NATIVE=off' if mode == 'off' else absent}"


def _absent(who: str, cell: Cell, name: str, device: torch.device) -> str:
    if name == AUTO:
        return (
            f"{who}: no installed plugin computes sequences of {cell} on {device}; rl-modules itself does: is it left"
            " out by RL_PLUGINS_DISABLE?"
        )
    known = sorted({AUTO, *_OWN, *(c.name for c in registry.default().components("recurrent_backend"))})
    installed = is_offered(name)
    remedy = "`rl doctor` says why" if installed else "`rl doctor` shows who answers"
    if name in _INSTALL and not installed:
        remedy = f"install it with `{_INSTALL[name]}`"
    if name == "triton" and device.type != "cuda":
        there = "move the module there" if torch.cuda.is_available() else "this torch sees none"
        remedy = f"it needs a CUDA device{f', and {there}' if installed else f' ({there})'}; {remedy}"
    return (
        f"{who}: the recurrent back end {name!r} does not answer for {cell} on {device} (known here:"
        f" {', '.join(known)}); {remedy}"
    )
