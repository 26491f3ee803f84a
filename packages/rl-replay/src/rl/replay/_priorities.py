"""Validation, ordered writes and random numbers of priority trees."""

from __future__ import annotations

import mmap
from contextlib import suppress
from math import isfinite
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from rl.core.arguments import as_number, one_of, same_shape
from rl.core.errors import ArgumentError, ShapeError
from rl.core.interfaces import PriorityTree
from rl.replay._arguments import to_device

_OWNER = "priority tree"

_IN_ORDER = 16_384
"""Elements that `index_copy_` writes in order on a CPU; above 32768, torch's grain size, it uses several threads."""


def zeros(shape: int | tuple[int, int], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """Zeros whose pages take no memory on a CPU before they are written; `torch.zeros` writes them.

    Raises:
        ArgumentError: If memory is short.

    Example:
        >>> zeros((1, 2), torch.float64, "cpu")
        tensor([[0., 0.]], dtype=torch.float64)
    """
    try:
        if torch.device(device).type != "cpu":
            return torch.zeros(shape, dtype=dtype, device=device)
        return torch.from_numpy(np.zeros(shape, np.float32 if dtype is torch.float32 else np.float64))
    except (MemoryError, ValueError, torch.OutOfMemoryError) as error:  # ValueError if the number of bytes overflows
        raise ArgumentError(
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
    """Return indices and priorities ``[n]`` in the dtype and on the device of the tree.

    Raises:
        IndexError: If an index is outside ``[0, capacity)``, or is not an integer.
        ValueError: If a priority is negative, infinite or NaN, or the shapes differ.
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
        ValueError: If it is zero or infinite.
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


_REDUCTIONS = {
    "max": lambda values: values.amax(-1),
    "min": lambda values: values.amin(-1),
    "mean": lambda values: values.mean(-1),
    "median": lambda values: values.median(-1).values,
}


_HUGE = 2**21  # bytes of a large page on most processors


def large_zeros(rows: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`zeros`, from 2 MiB on a CPU in huge pages if the system has them, which makes random writes faster.

    Raises:
        ArgumentError: If memory is short.

    Example:
        >>> large_zeros(2**20, torch.float32, torch.device("cpu")).count_nonzero().item()
        0
    """
    size = rows * dtype.itemsize
    if device.type == "cpu" and size >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError, OverflowError):  # no huge pages, or too little memory: `zeros` reports the latter
            pages = mmap.mmap(-1, size + _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            pages.madvise(mmap.MADV_HUGEPAGE)
            start = -torch.frombuffer(pages, dtype=torch.uint8).data_ptr() % _HUGE
            return torch.frombuffer(pages, dtype=dtype, count=rows, offset=start)
    return zeros(rows, dtype, device)


def check_reduction(owner: str, reduction: str) -> None:
    """Check the name of a reduction.

    Raises:
        ArgumentError: If there is no such reduction.
    """
    one_of(reduction, owner, "reduction", _REDUCTIONS)


def check_exponent(owner: str, name: str, value: Any) -> float:
    """`value` as a float.

    Raises:
        ArgumentError: If it is not a number, or negative, infinite or NaN.

    Example:
        >>> check_exponent("Sampler", "beta", 1)
        1.0
    """
    return as_number(value, owner, name, least=0)


def as_index(owner: str, index: Any, device: torch.device) -> Tensor:
    """Return indices as int64 ``[n]`` on `device`.

    Raises:
        ArgumentError: If they are not integers.

    Example:
        >>> as_index("Sampler", 3, torch.device("cpu"))
        tensor([3])
    """
    if not isinstance(index, Tensor):
        index = _tensor(owner, "an index is an integer, or a tensor of them", index)
        if not index.numel():
            index = index.long()
    if index.dtype is not torch.int64:
        if index.is_floating_point() or index.is_complex() or index.dtype is torch.bool:
            raise ArgumentError(f"{owner}: an index is an integer, got {index.dtype}")
        index = index.long()
    if index.device != device:
        index = to_device(index, device)
    return index if index.dim() == 1 else index.reshape(-1)


def _tensor(owner: str, expected: str, value: Any) -> Tensor:
    try:
        return torch.as_tensor(value, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(f"{owner}: {expected}, got {value!r}; nothing was written") from error


def flat_priority(index: Any, priority: Any) -> Any:
    """Priorities ``[n, ...]`` of priorities ``[*B, ...]`` for indices ``[*B]``.

    Example:
        >>> flat_priority(torch.zeros(2, 3), torch.ones(2, 3, 1)).shape
        torch.Size([6, 1])
    """
    both = isinstance(index, Tensor) and isinstance(priority, Tensor)
    if both and 1 < index.dim() <= priority.dim() and priority.shape[: index.dim()] == index.shape:
        return priority.flatten(0, index.dim() - 1)
    return priority


def as_priority(owner: str, priority: Any, rows: int, reduction: str, like: Tensor) -> Tensor:
    """Raw priorities ``[rows]`` of the dtype and device of `like`, detached.

    Raises:
        ArgumentError: If they are not real numbers.
        ShapeError: If they are neither ``[rows, ...]`` nor one number.

    Example:
        >>> as_priority("Sampler", torch.tensor([[1.0, -3.0], [0.0, 2.0]]), 2, "max", torch.zeros(1))
        tensor([3., 2.])
    """
    if not isinstance(priority, Tensor):
        priority = _tensor(owner, "a priority is a number, or a tensor of them", priority)
    elif priority.requires_grad:
        priority = priority.detach()
    if priority.is_complex():
        raise ArgumentError(f"{owner}: a priority is a real number, got {priority.dtype}; pass its absolute value")
    if priority.dtype is not like.dtype or priority.device != like.device:
        priority = to_device(priority, like.device).to(like.dtype)
    if priority.dim() == 0:
        return priority.expand(rows)
    if priority.shape[0] != rows:
        raise ShapeError(
            f"{owner}: {rows} indices and priorities of shape {list(priority.shape)}; expected [{rows}, ...], or one "
            "number for all"
        )
    if priority.dim() == 1:
        return priority
    if not rows:
        return priority.new_empty(0)
    if not priority[0].numel():
        raise ShapeError(f"{owner}: priorities of shape {list(priority.shape)} hold nothing for a row")
    priority = priority.reshape(rows, -1).abs()
    return priority[:, 0] if priority.shape[1] == 1 else _REDUCTIONS[reduction](priority)


def powers(owner: str, raw: Tensor, eps: float, alpha: float) -> Tensor:
    """``(|raw| + eps) ** alpha``; the tree checks that it is finite.

    Raises:
        ArgumentError: If a raw priority is infinite or NaN and alpha is 0, so that its power is 1.

    Example:
        >>> powers("Sampler", torch.tensor([-4.0, 0.0]), 0.0, 0.5)
        tensor([2., 0.])
    """
    if alpha == 0:
        check_finite(owner, raw)
    return raw.abs().add_(eps).pow_(alpha)


def check_finite(owner: str, priority: Tensor) -> None:
    """Check that raw priorities are finite.

    Raises:
        ArgumentError: If one is infinite or NaN.
    """
    bad = ~priority.isfinite()
    if bad.any():
        raise ArgumentError(
            f"{owner}: a priority is a finite number, got {priority[bad][0].item()} at position "
            f"{int(bad.nonzero()[0])}; nothing was written. Does the loss diverge?"
        )


def check_overflow(
    owner: str, raw: Tensor, eps: float, alpha: float, dtype: torch.dtype, *, of_new_rows: bool = False
) -> None:
    """Check that no power of a raw priority is infinite.

    Trees may round differently from torch: the limit is a millionth below the largest number of `dtype`.

    Raises:
        ArgumentError: Naming the raw priority and its power.

    Example:
        >>> check_overflow("Sampler", torch.tensor([1e30]), 0.0, 1.0, torch.float32)
    """
    raw = raw.detach().to("cpu", torch.float64).abs()
    bad = ~(raw.add(eps).pow_(alpha) <= torch.finfo(dtype).max * (1 - 1e-6))
    if bad.any():
        new = "; new rows get the largest raw priority since `empty`" if of_new_rows else ""
        raise ArgumentError(
            f"{owner}: with alpha={alpha} and eps={eps}, the raw priority {raw[bad][0].item():.6g} makes "
            f"(|raw| + eps) ** alpha infinite in {dtype}{new}; nothing was written"
        )
