"""Selection of the tree for a CUDA device: `CudaPriorityTree`, or None with a warning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rl.core.backends import report_missing
from rl.core.settings import settings
from rl.prio_cuda._library import library, why, why_not

if TYPE_CHECKING:
    import torch

    from rl.prio_cuda._tree import CudaPriorityTree

__all__ = ["notes", "tree_for"]


def tree_for(capacity: int, device: torch.device, dtype: torch.dtype) -> CudaPriorityTree | None:
    """A tree on a CUDA device; None, with a warning, if something is missing.

    There is no warning if torch sees no GPU, for another dtype, and with ``RL_NATIVE=off``.

    Raises:
        RLError: if ``RL_NATIVE`` is ``require`` and the library cannot be used, on this device or at all.
    """
    import torch

    if dtype not in (torch.float32, torch.float64) or not torch.cuda.is_available() or settings().native == "off":
        return None
    usable = library() is not None  # raises where it is required
    reason = why_not(_number(device))
    if usable and not reason:
        from rl.prio_cuda._tree import CudaPriorityTree

        return CudaPriorityTree(capacity, dtype=dtype, device=device)
    report_missing(reason, "Plain torch is used instead, which is much slower")
    return None


def _number(device: torch.device) -> int:
    import torch

    index: Any = device.index  # torch declares an int, and gives None for "cuda"
    return torch.cuda.current_device() if index is None else index


def notes() -> list[str]:
    """What is missing, for ``rl doctor``; else the library, architectures, driver and devices."""
    return [why_not() or why()]
