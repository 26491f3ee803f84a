"""What there is to know of the arguments of a return. This runs at every call, and a small batch costs little else.

Therefore each tensor is asked as little as will do, in the open: a call of a function costs as much as a question.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.nn import Parameter

from rl.native._returns import BITS, is_without_memory, refuse_out
from rl.native._traced import is_dual, is_transformed

__all__ = ["coefficient", "look", "look_at_out"]

_PLAIN_TYPES = frozenset((Tensor, Parameter))
_FLAGS = 6
"""Where flags begin among the arguments: numbers come before."""
_BOOL = torch.bool
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


def look(
    shape: torch.Size,
    dtype: torch.dtype,
    numbers: Sequence[Tensor | None],
    flags: Sequence[Tensor],
    *,
    traced: bool,
) -> list[int] | None:
    """Whether the kernels take the arguments, and where they are.

    Args:
        shape: that all are to have.
        dtype: that numbers are to have.
        numbers: `_FLAGS` of them, float32 or float64.
        flags: bool.
        traced: from `is_traced`.

    Returns:
        None unless all are in memory of the CPU, of one shape and type, flags bool, and none asks for a gradient. Else
        their addresses, 0 for None, if all are contiguous; else an empty list.
    """
    if traced or dtype not in BITS:
        return _look_closer(shape, dtype, numbers, flags, traced=traced)
    found: list[int] = []
    add = found.append
    for tensor in numbers:
        if tensor is None:
            add(0)
        elif (
            type(tensor) is Tensor
            and tensor.dtype is dtype
            and tensor.is_cpu
            and tensor.shape == shape
            and not tensor.requires_grad
            and tensor.is_contiguous()
            and (start := tensor.data_ptr())
        ):
            add(start)
        else:
            return _look_closer(shape, dtype, numbers, flags, traced=False)
    for tensor in flags:
        if (
            type(tensor) is Tensor
            and tensor.dtype is _BOOL
            and tensor.is_cpu
            and tensor.shape == shape
            and tensor.is_contiguous()
            and (start := tensor.data_ptr())
        ):
            add(start)
        else:
            return _look_closer(shape, dtype, numbers, flags, traced=False)
    # A negative view of one element is contiguous, but its memory holds the other sign.
    return found if shape.numel() != 1 else []


def _look_closer(
    shape: torch.Size,
    dtype: torch.dtype,
    numbers: Sequence[Tensor | None],
    flags: Sequence[Tensor],
    *,
    traced: bool,
) -> list[int] | None:
    """`look`, where there is something unusual about an argument."""
    if dtype not in BITS or (traced and not _is_compiling() and (is_dual() or is_transformed())):
        return None
    given = (*numbers, *flags)
    for slot, tensor in enumerate(given):
        if tensor is None:
            continue
        if tensor.shape != shape or not tensor.is_cpu or tensor.dtype is not (dtype if slot < _FLAGS else torch.bool):
            return None
        if (tensor.requires_grad and torch.is_grad_enabled()) or not (traced or type(tensor) in _PLAIN_TYPES):
            return None
        if not traced and is_without_memory(tensor):
            return None
    if traced or shape.numel() == 1 or not all(tensor is None or tensor.is_contiguous() for tensor in given):
        return []
    return [0 if tensor is None else tensor.data_ptr() for tensor in given]


def look_at_out(out: Sequence[Tensor], found: list[int], inputs: Sequence[Tensor | None], like: Tensor) -> bool:
    """Whether outputs are contiguous; their addresses are added to `found` then. Autograd is told that they change.

    Args:
        out: what would be written.
        found: addresses of `inputs`, from `look`.
        inputs: what is read meanwhile: numbers, and flags behind `_FLAGS` of them.
        like: has the shape and type that outputs are to have.

    Raises:
        ShapeError: as `refuse_out`.
        SpecError: likewise.
    """
    dense = bool(found) and _added(out, found, like)
    if not dense:
        refuse_out(out, inputs, like)
    increment_version(out)
    return dense


def _added(out: Sequence[Tensor], found: list[int], like: Tensor) -> bool:
    """Add addresses of outputs that are as usual; False if one is not, or shares memory."""
    dtype, shape, size, flag_size = like.dtype, like.shape, like.nbytes, like.numel()
    numbers, flags = found[:_FLAGS], found[_FLAGS:]
    for tensor in out:
        if not (
            type(tensor) is Tensor
            and tensor.dtype is dtype
            and tensor.is_cpu
            and tensor.shape == shape
            and not tensor.requires_grad
            and tensor.is_contiguous()
        ):
            return False
        start = tensor.data_ptr()
        if not start:
            return False
        for other in numbers:
            if -size < other - start < size:
                return False
        for other in flags:
            if -flag_size < other - start < size:
                return False
        numbers.append(start)
        found.append(start)
    return True
