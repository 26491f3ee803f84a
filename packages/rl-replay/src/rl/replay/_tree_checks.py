"""What both torch trees do with what they are given: refuse, sort out repeated indices, make random marks."""

from __future__ import annotations

from math import isfinite

import torch
from torch import Tensor

from rl.core.checks import same_shape
from rl.core.interfaces import PriorityTree

__all__ = ["checked_total", "checked_update", "marks", "write_in_order"]

_IN_ORDER = 16_384
"""On a CPU `index_copy_` goes through so many elements in order; above 32768, torch's grain, threads take parts."""


def write_in_order(target: Tensor, index: Tensor, values: Tensor) -> None:
    """``target[index] = values`` in one dimension; of a repeated index the last value counts, on every device.

    Example:
        >>> row = torch.zeros(4, dtype=torch.int64)
        >>> write_in_order(row, torch.tensor([3, 1, 3]), torch.tensor([10, 20, 30]))
        >>> row
        tensor([ 0, 20,  0, 30])
    """
    if target.device.type != "cpu":
        target.index_copy_(0, *_last_of_each(index, values))
    elif len(index) <= _IN_ORDER:
        target.index_copy_(0, index, values)
    else:
        for part, some in zip(index.split(_IN_ORDER), values.split(_IN_ORDER), strict=True):
            target.index_copy_(0, part, some)


def _last_of_each(index: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    index, order = index.sort(stable=True)
    last = torch.ones_like(index, dtype=torch.bool)
    torch.ne(index[1:], index[:-1], out=last[:-1])
    return index[last], values[order[last]]


def checked_update(tree: PriorityTree, index: Tensor, priority: Tensor) -> tuple[Tensor, Tensor]:
    """Both in one dimension, in the tree's dtype and on its device.

    Raises:
        IndexError: if an index is outside ``[0, capacity)``, or is no integer.
        ValueError: if a priority is negative, infinite or not a number, or the shapes differ.
    """
    who = type(tree).__name__
    same_shape(index=index, priority=priority)
    if index.is_floating_point() or index.dtype is torch.bool:
        raise IndexError(f"{who}: indices are int64, got {index.dtype}")
    index, priority = index.reshape(-1).to(tree.device, torch.int64), priority.reshape(-1).to(tree.device, tree.dtype)
    if not len(index):
        return index, priority
    low, high = index.aminmax()
    if low.item() < 0 or high.item() >= tree.capacity:
        wrong = low.item() if low.item() < 0 else high.item()
        raise IndexError(f"{who}: index {wrong} is outside [0, {tree.capacity}); nothing was written")
    least, most = (bound.item() for bound in priority.aminmax())
    if not (least >= 0 and isfinite(most)):
        wrong = priority[~(priority.isfinite() & (priority >= 0))][0].item()
        raise ValueError(f"{who}: a priority is finite and not negative, got {wrong}; nothing was written")
    return index, priority


def checked_total(total: Tensor) -> Tensor:
    """The total, if something can be drawn.

    Raises:
        ValueError: if it is zero or infinite.
    """
    value = total.item()
    if value == 0:
        raise ValueError("nothing can be drawn: all priorities are zero")
    if not isfinite(value):
        raise ValueError("nothing can be drawn: the sum of all priorities is too large for float64")
    return total


def marks(
    n: int, total: Tensor, device: torch.device, generator: torch.Generator | None, *, stratified: bool
) -> Tensor:
    """Uniform float64 numbers ``[n]`` in ``[0, total]``; one in each of n equal parts if `stratified`."""
    source = device if generator is None else generator.device
    uniform = torch.rand(n, generator=generator, device=source, dtype=torch.float64).to(device)
    if stratified:
        uniform = (uniform + torch.arange(n, device=device)) / n
    return uniform * total
