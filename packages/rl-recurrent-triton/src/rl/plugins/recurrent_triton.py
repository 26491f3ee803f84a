"""Plugin declarations of rl-recurrent-triton: components and hooks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rl.core.component import Component
from rl.core.hookspecs import hookimpl

if TYPE_CHECKING:
    import torch

    from rl.core.interfaces import RecurrentBackend


@hookimpl
def rl_components() -> Iterator[Component]:
    """Declare the recurrent back end."""
    yield Component(
        kind="recurrent_backend",
        name="triton",
        target="rl.recurrent_triton:TritonBackend",
        summary="LSTM and GRU in Triton kernels, for CUDA devices.",
    )


@hookimpl
def rl_recurrent_backend(cell: str, name: str | None, device: torch.device) -> RecurrentBackend | None:
    """Return the back end ``triton``: the first choice on CUDA devices; on the CPU by name, if Triton interprets."""
    if cell not in ("lstm", "gru") or name not in (None, "triton"):
        return None
    if device.type != "cuda" and (device.type != "cpu" or name is None):
        return None
    from rl.recurrent_triton._backend import backend_for

    return backend_for(device, by_name=name is not None)


@hookimpl
def rl_notes() -> list[str]:
    """Report the version of Triton and the devices, or what is missing."""
    from rl.recurrent_triton._device import notes

    return notes()
