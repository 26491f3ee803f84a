"""Selection of the back end that computes sequences."""

from __future__ import annotations

from dataclasses import replace

import torch

from rl.core import registry
from rl.core.backends import AUTO, NATIVE, Accelerator, Backend, missing_native, select
from rl.core.interfaces import RecurrentBackend
from rl.modules.recurrent._weights import Cell
from rl.modules.recurrent.backends._pad import PadBackend
from rl.modules.recurrent.backends._scan import ScanBackend
from rl.modules.recurrent.ops._kernels import TORCH

__all__ = ["AUTO", "Found", "find_backend", "is_offered"]

_HOOK, _KIND = "rl_recurrent_backend", "recurrent_backend"
_OWN: dict[str, type[ScanBackend | PadBackend]] = {"scan": ScanBackend, "pad": PadBackend}
_ACCELERATORS = {
    "triton": Accelerator("rl-recurrent-triton", "pip install rl-recurrent-triton", "cuda"),
    "native": NATIVE,
}

Found = tuple[RecurrentBackend, Backend]


def find_backend(owner: str, cell: Cell, name: str, device: torch.device) -> Found:
    """Select a back end.

    Args:
        owner: the component that needs it, for messages.
        cell: ``"lstm"`` or ``"gru"``.
        name: name of the back end, or ``"auto"`` for the first that answers.
        device: device of weights and data.

    Raises:
        BackendError: if the back end does not answer here, or only plain torch does with ``RL_NATIVE=require``.
    """
    if name in _OWN and not is_offered(name):  # rl-modules is left out by RL_PLUGINS_DISABLE
        return _OWN[name](), Backend(name, "rl-modules", "asked for by name")
    arguments = {"cell": cell, "name": None if name == AUTO else name, "device": device}
    found, backend, _ = select(
        owner,
        _HOOK,
        arguments,
        where=f"{cell} on {device}" if name != AUTO else device.type,
        fallback="rl-modules",
        name=name,
        kind=_KIND,
        accelerators=_ACCELERATORS,
    )
    if name == AUTO and device.type == "cpu" and getattr(found, "kernels", None) == TORCH:
        backend = replace(backend, why=f"{backend.why}; {missing_native(owner, _HOOK)}")
    return found, backend


def is_offered(name: str) -> bool:
    """Whether a plugin lists a back end of that name, which may answer for another device."""
    return any(component.name == name for component in registry.default().components(_KIND))
