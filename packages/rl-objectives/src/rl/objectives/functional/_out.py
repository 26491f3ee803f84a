"""Results in tensors of the caller (`out`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rl.core.errors import ShapeError, SpecError

__all__ = ["Pair", "check_apart", "write"]

Pair = tuple[Tensor, Tensor]


def write(out: Sequence[Tensor], found: Sequence[Tensor], inputs: Sequence[object]) -> None:
    """Copy results into the tensors of the caller.

    Args:
        out: tensors of the caller.
        found: the results.
        inputs: arguments of the computation; tensors among them must not share memory with `out`.

    Raises:
        ShapeError: if a shape differs; nothing is written then.
        SpecError: if their number, a dtype or a device differs, one requires a gradient, or memory is shared.
    """
    if len(out) != len(found):
        raise SpecError(f"out has {len(out)} tensor(s); there are {len(found)} results, each needs one")
    tensors = [x for x in inputs if isinstance(x, Tensor)]
    for one, result in zip(out, found, strict=True):
        if one.shape != result.shape:
            raise ShapeError(f"out has shape {tuple(one.shape)}; it must have {tuple(result.shape)}, as the inputs do")
        if one.dtype != result.dtype or one.device != result.device:
            raise SpecError(
                f"out is {one.dtype} on {one.device}; it must be {result.dtype} on {result.device}, as the result is"
            )
        if one.requires_grad or result.requires_grad:
            raise SpecError("out takes no gradient: call this under torch.no_grad(), or leave out away")
        check_apart(one, tensors)
        tensors.append(one)
    for one, result in zip(out, found, strict=True):
        one.copy_(result)


def check_apart(out: Tensor, others: Sequence[Tensor]) -> None:
    """Raise if `out` shares memory with itself or another tensor; not checked in compiled code, which has no addresses.

    Raises:
        SpecError: if it does.
    """
    if torch.compiler.is_compiling():
        return
    if any(step == 0 and size > 1 for size, step in zip(out.shape, out.stride(), strict=True)):
        raise SpecError("several elements of out share memory; give it memory of its own")
    first, end = _span(out)
    for other in others:
        start, stop = _span(other)
        if first < stop and start < end:
            raise SpecError("out overlaps an input or the other out; give it memory of its own")


def _span(tensor: Tensor) -> tuple[int, int]:
    """First address, and the one after the last."""
    start = tensor.data_ptr()
    if not tensor.numel():
        return start, start
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.element_size()
