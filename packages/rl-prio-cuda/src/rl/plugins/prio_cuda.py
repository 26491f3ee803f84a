"""Plugin declarations of rl-prio-cuda: components and hooks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rl.core.component import Component
from rl.core.hookspecs import hookimpl

if TYPE_CHECKING:
    import torch

    from rl.core.interfaces import PriorityTree


@hookimpl
def rl_components() -> Iterator[Component]:
    """Declare the priority tree."""
    yield Component(
        kind="tree_backend",
        name="cuda",
        target="rl.prio_cuda:CudaPriorityTree",
        summary="Priority tree on CUDA devices.",
    )


@hookimpl
def rl_priority_tree(capacity: int, device: torch.device, dtype: torch.dtype) -> PriorityTree | None:
    """Return the tree on the GPU, for float32 and float64, where torch sees the device."""
    if device.type != "cuda":
        return None
    from rl.prio_cuda._tree import tree_for

    return tree_for(capacity, device, dtype)


@hookimpl
def rl_notes() -> list[str]:
    """Return the library, its architectures, the driver and the devices, or what is missing."""
    from rl.prio_cuda._library import why, why_not

    return [why_not() or why()]
