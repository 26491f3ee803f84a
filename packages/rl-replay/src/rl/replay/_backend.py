"""Which priority tree a sampler uses, and why."""

from __future__ import annotations

import inspect
import warnings
from dataclasses import dataclass
from typing import Any

import torch

from rl.core import registry
from rl.core.errors import BackendError, SlowBackendWarning
from rl.core.interfaces import PriorityTree
from rl.core.registry import Answer
from rl.core.settings import settings
from rl.replay._torch_tree import torch_tree

__all__ = ["Backend", "find_tree", "offers_more_than_torch"]

_HOOK = "rl_priority_tree"
_TORCH = "torch"
_INSTALL = {"native": 'pip install "rl-replay[native]"', "cuda": "pip install rl-prio-cuda"}
_DISTRIBUTION = {"native": "rl-native", "cuda": "rl-prio-cuda", "torch": "rl-replay"}

_warned: set[str] = set()


@dataclass(frozen=True)
class Backend:
    """Who computes, and why that one.

    Args:
        name: ``"native"``, ``"torch"``, ``"cuda"``, or what another plugin calls itself.
        distribution: the package that it comes from.
        why: a sentence.

    Example:
        >>> str(Backend("torch", "rl-replay", "asked for by name"))
        'torch of rl-replay: asked for by name'
    """

    name: str
    distribution: str
    why: str

    def __str__(self) -> str:
        return f"{self.name} of {self.distribution}: {self.why}"


def find_tree(
    who: str, backend: str, capacity: int, device: torch.device, dtype: torch.dtype
) -> tuple[PriorityTree, Backend]:
    """A priority tree and what is to be said about it.

    Args:
        who: for messages.
        backend: the name of one, or ``"auto"`` for the first that answers.
        capacity: number of leaves.
        device: where priorities live.
        dtype: of the priorities.

    Raises:
        BackendError: if the one that was asked for does not answer here; says how to install it.
    """
    if backend == _TORCH:
        tree = torch_tree(capacity, device, dtype)
        return tree, Backend(_TORCH, _DISTRIBUTION[_TORCH], f"asked for by name ({tree.why})")
    arguments: dict[str, Any] = {"capacity": capacity, "device": device, "dtype": dtype}
    found = registry.default().answer(_HOOK, **arguments)
    if backend != "auto" and (found is None or not _is(found, backend)):
        answers = registry.default().answers(_HOOK, **arguments)
        found = next((answer for answer in answers if _is(answer, backend)), None)
        if found is None:
            raise BackendError(_absent(who, backend, device, dtype, answers))
    if found is None:
        raise BackendError(
            f"{who}: no installed plugin offers a priority tree for {device} and {dtype}; priorities are float32 or "
            "float64, and rl-replay itself answers for both: is it left out by RL_PLUGINS_DISABLE?"
        )
    said = getattr(found.value, "why", "")
    if backend != "auto":
        reason = "asked for by name"
    elif _is(found, _TORCH):
        reason = _fell_to_torch(who, found, device)
    else:
        reason = f"the first that answers for {device.type}"
    return found.value, Backend(_name(found), found.plugin.distribution, f"{reason}{f' ({said})' if said else ''}")


def offers_more_than_torch(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether an accelerator answers for `device`."""
    found = registry.default().answer(_HOOK, capacity=1, device=device, dtype=dtype)
    return found is not None and not _is(found, _TORCH)


def _name(answer: Answer) -> str:
    return getattr(answer.value, "name", None) or answer.plugin.name


def _is(answer: Answer, backend: str) -> bool:
    return _name(answer) == backend or answer.plugin.distribution == _DISTRIBUTION.get(backend)


def _absent(who: str, backend: str, device: torch.device, dtype: torch.dtype, answers: list[Answer]) -> str:
    names = ", ".join(dict.fromkeys(_name(answer) for answer in answers)) or "nobody"
    if backend in _INSTALL:
        remedy = f"install it with `{_INSTALL[backend]}`; if it is installed, `rl doctor` says why it does not answer"
        if backend == "cuda" and device.type != "cuda":
            remedy = f"it needs a CUDA device; {remedy}"
    else:
        remedy = "`rl doctor` shows who answers"
    return f"{who}: backend {backend!r} does not answer for {device} and {dtype} (those that do: {names}); {remedy}"


def _fell_to_torch(who: str, found: Answer, device: torch.device) -> str:
    """Why it is the torch tree; on a CPU, where something faster exists, not without a word."""
    if device.type != "cpu":
        return f"no installed plugin offers a faster tree for {device.type}"
    mode = settings().native
    if mode == "off":
        return "RL_NATIVE=off"
    passed = [plugin for plugin in found.passed if plugin.startswith("rl-native:")]
    absent = "rl-native is installed but does not answer" if passed else "rl-native is not installed"
    remedy = "`rl doctor` says why" if passed else _INSTALL["native"]
    if mode == "require":
        raise BackendError(f"{who}: RL_NATIVE=require, and {absent}: {remedy}")
    if absent not in _warned:
        _warned.add(absent)
        warnings.warn(
            f"{who} samples with plain torch, many times slower than need be, because {absent}: {remedy}. "
            "backend='torch' asks for it without this warning",
            SlowBackendWarning,
            stacklevel=_outside(),
        )
    return absent


def _outside() -> int:
    """How many frames lie between the caller of this function and the first that is not of rl-replay."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").startswith("rl.replay"):
        frame, level = frame.f_back, level + 1
    return level
