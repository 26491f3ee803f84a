"""Validation, ordered writes and random numbers of priority trees."""

from __future__ import annotations

from math import isfinite
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from rl.core.arguments import same_shape
from rl.core.errors import SpecError
from rl.core.interfaces import PriorityTree

__all__ = [
    "checked_total",
    "checked_update",
    "uniform",
    "write_in_order",
    "zeros",
]

_OWNER = "priority tree"

_IN_ORDER = 16_384
"""Elements that `index_copy_` writes in order on a CPU; above 32768, torch's grain size, it uses several threads."""


def zeros(shape: int | tuple[int, int], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """Zeros whose pages take no memory on a CPU before they are written; `torch.zeros` writes them.

    Raises:
        SpecError: if memory is short.

    Example:
        >>> zeros((1, 2), torch.float64, "cpu")
        tensor([[0., 0.]], dtype=torch.float64)
    """
    try:
        if torch.device(device).type != "cpu":
            return torch.zeros(shape, dtype=dtype, device=device)
        return torch.from_numpy(np.zeros(shape, np.float32 if dtype is torch.float32 else np.float64))
    except (MemoryError, ValueError, torch.OutOfMemoryError) as error:  # ValueError if the number of bytes overflows
        raise SpecError(
            f"priorities of {shape} rows and {dtype} do not fit into the memory of {device}; give the sampler or the "
            "storage the number of rows that are stored"
        ) from error


def write_in_order(target: Tensor, index: Tensor, values: Tensor) -> None:
    """``target[index] = values`` in one dimension; of a repeated index the last value is kept, on every device.

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
    """Indices and priorities ``[n]`` in the dtype and on the device of the tree.

    Raises:
        IndexError: if an index is outside ``[0, capacity)``, or is not an integer.
        ValueError: if a priority is negative, infinite or NaN, or the shapes differ.
    """
    index, priority = _in_form(tree, index, priority)
    if index.numel():
        low, high = (int(bound.item()) for bound in torch.aminmax(index))
        if low < 0 or high >= tree.capacity:
            _raise_index(tree.capacity, low, high)
        least, most = (bound.item() for bound in torch.aminmax(priority))
        if not (least >= 0 and isfinite(most)):
            _raise_priority(priority)
    return index, priority


def _in_form(tree: PriorityTree, index: Tensor, priority: Tensor) -> tuple[Tensor, Tensor]:
    device = tree.device
    if index.dim() != 1 or priority.dim() != 1 or index.numel() != priority.numel():  # faster than comparing shapes
        same_shape(index=index, priority=priority)
        index, priority = index.reshape(-1), priority.reshape(-1)
    if index.dtype is not torch.int64 or index.device != device:
        if index.is_floating_point() or index.dtype is torch.bool:
            raise IndexError(f"{_OWNER}: indices are int64, got {index.dtype}")
        index = index.to(device, torch.int64)
    if priority.dtype is not tree.dtype or priority.device != device:
        priority = priority.to(device, tree.dtype)
    return index, priority.detach() if priority.requires_grad else priority


def _raise_index(capacity: int, low: int, high: int) -> NoReturn:
    wrong = low if low < 0 else high
    raise IndexError(f"{_OWNER}: index {wrong} is outside [0, {capacity}); nothing was written")


def _raise_priority(priority: Tensor) -> NoReturn:
    wrong = priority[~(priority.isfinite() & (priority >= 0))][0].item()
    raise ValueError(f"{_OWNER}: a priority is finite and not negative, got {wrong}; nothing was written")


def checked_total(value: float) -> float:
    """Check the sum of all priorities.

    Raises:
        ValueError: if it is zero or infinite.
    """
    if value == 0:
        raise ValueError("nothing can be sampled: all priorities are zero")
    if not isfinite(value):
        raise ValueError("nothing can be sampled: the sum of all priorities is too large for float64")
    return value


def uniform(n: int, device: torch.device, generator: torch.Generator | None, *, stratified: bool) -> Tensor:
    """Uniform float64 numbers ``[n]`` in ``[0, 1]``; one in each of n equal parts if `stratified`."""
    if generator is None or generator.device == device:
        numbers = torch.rand(n, generator=generator, device=device, dtype=torch.float64)
    else:
        numbers = torch.rand(n, generator=generator, device=generator.device, dtype=torch.float64).to(device)
    if stratified:
        numbers = numbers.add_(torch.arange(n, device=device)).div_(n)
    return numbers
