"""What there is to know of the arguments of a return where C, see `csrc/returns_python.c`, found an unusual one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from rl.native._returns import BITS, is_without_memory
from rl.native._traced import is_dual, is_transformed

__all__ = ["are_taken", "coefficient"]

_PLAIN_TYPES = frozenset((Tensor, Parameter))
_is_compiling = torch.compiler.is_compiling


def coefficient(value: float | Tensor, like: Tensor, *, traced: bool) -> tuple[float, Tensor | None]:
    """A coefficient as a number, or as a tensor by step."""
    if not isinstance(value, Tensor):
        return float(value), None
    if value.ndim:
        return 0.0, value
    if not traced and not (value.requires_grad and torch.is_grad_enabled()):
        return float(value.to(like.dtype)), None
    return 0.0, value.to(like).expand(like.shape)


def are_taken(numbers: Sequence[Tensor | None], flags: Sequence[Tensor], *, traced: bool) -> bool:
    """Whether the kernels take the arguments, wherever in memory of the CPU their elements are.

    Args:
        numbers: float32 or float64, all as the first one.
        flags: bool.
        traced: from `is_traced`: what is to be known of memory is not asked then.

    Returns:
        Whether all are of one shape, on the CPU and of their type, and none asks for a gradient.
    """
    first = numbers[0]
    assert first is not None
    shape, dtype = first.shape, first.dtype
    if dtype not in BITS or (traced and not _is_compiling() and (is_dual() or is_transformed())):
        return False
    present = [tensor for tensor in numbers if tensor is not None]
    for tensor, kind in (*((tensor, dtype) for tensor in present), *((tensor, torch.bool) for tensor in flags)):
        if not isinstance(tensor, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance] - to read from 0 ends the process
            return False
        if tensor.shape != shape or not tensor.is_cpu or tensor.dtype is not kind:
            return False
        if (tensor.requires_grad and torch.is_grad_enabled()) or not (traced or type(tensor) in _PLAIN_TYPES):
            return False
        if not traced and is_without_memory(tensor):
            return False
    return True
