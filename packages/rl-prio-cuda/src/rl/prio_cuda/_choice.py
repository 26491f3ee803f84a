"""Which tree answers for a CUDA device: the library, the Triton twin, or none, never without a word."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rl.core.errors import RLError, SlowBackendWarning
from rl.core.settings import settings
from rl.prio_cuda._library import library, why, why_not

if TYPE_CHECKING:
    import torch

    from rl.prio_cuda._tree import CudaPriorityTree, TritonPriorityTree

__all__ = ["notes", "tree_for"]

_warned: set[str] = set()


def tree_for(capacity: int, device: torch.device, dtype: torch.dtype) -> CudaPriorityTree | TritonPriorityTree | None:
    """The best tree for a CUDA device; None, with a warning, if something is missing.

    Without a word where torch sees no GPU, for another dtype, and with ``RL_NATIVE=off``.

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
    if settings().native == "require":
        raise RLError(f"RL_NATIVE is require, but {reason}")
    if not has_triton():
        _warn(f"{reason}. Triton is not installed either (`pip install triton`): plain torch answers, much slower")
        return None
    _warn(f"{reason}. The Triton kernels of rl-prio-cuda answer instead, with more launches for each call")
    from rl.prio_cuda._tree import TritonPriorityTree

    return TritonPriorityTree(capacity, dtype=dtype, device=device)


def has_triton() -> bool:
    """Whether Triton is installed; it is not imported."""
    return find_spec("triton") is not None


def _number(device: torch.device) -> int:
    import torch

    index: Any = device.index  # torch declares an int, and gives None for "cuda"
    return torch.cuda.current_device() if index is None else index


def _warn(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, SlowBackendWarning, stacklevel=2)


def notes() -> list[str]:
    """What is missing, for ``rl doctor``; else the library, architectures, driver and devices."""
    reason = why_not()
    if not reason:
        return [why()]
    twin = "is installed: its kernels answer where torch sees a GPU" if has_triton() else "is not installed"
    return [reason if settings().native == "off" else f"{reason}. Triton {twin}"]
