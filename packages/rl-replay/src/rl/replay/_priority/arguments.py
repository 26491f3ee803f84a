"""Conversion and checks of the indices and priorities that a prioritized sampler is given."""

from __future__ import annotations

import mmap
from contextlib import suppress
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from rl.core.errors import ContractError, ShapeError, SpecError
from rl.replay._priority.checks import zeros

__all__ = [
    "as_index",
    "as_priority",
    "check_reduction",
    "large_zeros",
    "powers",
    "refuse_bad",
    "refuse_exponent",
    "refuse_overflow",
    "same_places",
]

_REDUCTIONS = {
    "max": lambda values: values.amax(-1),
    "min": lambda values: values.amin(-1),
    "mean": lambda values: values.mean(-1),
    "median": lambda values: values.median(-1).values,
}


_HUGE = 2**21  # bytes of a large page on most processors


def large_zeros(rows: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`zeros`; many of them on a CPU in large pages, where the system has them: writes at random wait less.

    Raises:
        SpecError: if there is not so much memory.

    Example:
        >>> large_zeros(2**20, torch.float32, torch.device("cpu")).count_nonzero().item()
        0
    """
    size = rows * dtype.itemsize
    if device.type == "cpu" and size >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError, OverflowError):  # so much memory, or such pages, there are not
            pages = mmap.mmap(-1, size + _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            pages.madvise(mmap.MADV_HUGEPAGE)
            start = -torch.frombuffer(pages, dtype=torch.uint8).data_ptr() % _HUGE
            return torch.frombuffer(pages, dtype=dtype, count=rows, offset=start)
    return zeros(rows, dtype, device)


def check_reduction(who: str, reduction: str) -> None:
    """Refuse what is no reduction.

    Raises:
        ContractError: naming those that there are.
    """
    if reduction not in _REDUCTIONS:
        raise ContractError(f"{who}: reduction must be one of {', '.join(_REDUCTIONS)}, got {reduction!r}")


def refuse_exponent(who: str, name: str, value: Any) -> float:
    """`value` as a float.

    Raises:
        SpecError: if it is no number, negative, infinite or NaN.

    Example:
        >>> refuse_exponent("Sampler", "beta", 1)
        1.0
    """
    try:
        number = float("nan") if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not (isfinite(number) and number >= 0):
        raise SpecError(f"{who}: {name} must be a number, finite and not negative, got {value!r}")
    return number


def as_index(who: str, index: Any, device: torch.device) -> Tensor:
    """Indices as int64 ``[n]`` on `device`.

    Raises:
        SpecError: if they are no integers.

    Example:
        >>> as_index("Sampler", 3, torch.device("cpu"))
        tensor([3])
    """
    if not isinstance(index, Tensor):
        index = _tensor(who, "an index is an integer, or a tensor of them", index)
        if not index.numel():
            index = index.long()
    if index.dtype is not torch.int64:
        if index.is_floating_point() or index.is_complex() or index.dtype is torch.bool:
            raise SpecError(f"{who}: an index is an integer, got {index.dtype}")
        index = index.long()
    if index.device != device:
        index = index.to(device, non_blocking=_may_go_on(index))
    return index if index.dim() == 1 else index.reshape(-1)


def _tensor(who: str, expected: str, value: Any) -> Tensor:
    try:
        return torch.as_tensor(value, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise SpecError(f"{who}: {expected}, got {value!r}; nothing was written") from error


def same_places(index: Any, priority: Any) -> Any:
    """Priorities ``[n, ...]``, if they came as ``[*B, ...]`` for indices ``[*B]`` of several dimensions.

    Example:
        >>> same_places(torch.zeros(2, 3), torch.ones(2, 3, 1)).shape
        torch.Size([6, 1])
    """
    both = isinstance(index, Tensor) and isinstance(priority, Tensor)
    if both and 1 < index.dim() <= priority.dim() and priority.shape[: index.dim()] == index.shape:
        return priority.flatten(0, index.dim() - 1)
    return priority


def _may_go_on(values: Tensor) -> bool:
    """Whether a copy of `values` to another device need not be waited for.

    From pageable memory it has left when the call returns. From pinned memory it is read later, when the caller may
    have written there; and what comes to the CPU is not there yet.
    """
    return values.is_cpu and not values.is_pinned()


def as_priority(who: str, priority: Any, rows: int, reduction: str, like: Tensor) -> Tensor:
    """Raw priorities ``[rows]`` of the dtype and device of `like`, without history.

    Raises:
        SpecError: if they are no real numbers.
        ShapeError: if they are neither ``[rows, ...]`` nor one number.

    Example:
        >>> as_priority("Sampler", torch.tensor([[1.0, -3.0], [0.0, 2.0]]), 2, "max", torch.zeros(1))
        tensor([3., 2.])
    """
    if not isinstance(priority, Tensor):
        priority = _tensor(who, "a priority is a number, or a tensor of them", priority)
    elif priority.requires_grad:
        priority = priority.detach()
    if priority.is_complex():
        raise SpecError(f"{who}: a priority is a real number, got {priority.dtype}; give its absolute value")
    if priority.dtype is not like.dtype or priority.device != like.device:
        priority = priority.to(like, non_blocking=_may_go_on(priority))
    if priority.dim() == 0:
        return priority.expand(rows)
    if priority.shape[0] != rows:
        raise ShapeError(
            f"{who}: {rows} indices and priorities of shape {list(priority.shape)}; expected [{rows}, ...], or one "
            "number for all"
        )
    if priority.dim() == 1:
        return priority
    if not rows:
        return priority.new_empty(0)
    if not priority[0].numel():
        raise ShapeError(f"{who}: priorities of shape {list(priority.shape)} hold nothing for a row")
    priority = priority.reshape(rows, -1).abs()
    return priority[:, 0] if priority.shape[1] == 1 else _REDUCTIONS[reduction](priority)


def powers(who: str, raw: Tensor, eps: float, alpha: float) -> Tensor:
    """``(|raw| + eps) ** alpha``, for a tree that refuses what is infinite or not a number.

    Raises:
        SpecError: if a raw priority is, and no power tells of it: to the power of 0, all are 1.

    Example:
        >>> powers("Sampler", torch.tensor([-4.0, 0.0]), 0.0, 0.5)
        tensor([2., 0.])
    """
    if alpha == 0:
        refuse_bad(who, raw)
    return raw.abs().add_(eps).pow_(alpha)


def refuse_bad(who: str, priority: Tensor) -> None:
    """Refuse what cannot be a raw priority.

    Raises:
        SpecError: if one is infinite or not a number.
    """
    bad = ~priority.isfinite()
    if bad.any():
        raise SpecError(
            f"{who}: a priority is a finite number, got {priority[bad][0].item()} at place "
            f"{int(bad.nonzero()[0])}; nothing was written. Does the loss diverge?"
        )


def refuse_overflow(
    who: str, raw: Tensor, eps: float, alpha: float, dtype: torch.dtype, *, of_new_rows: bool = False
) -> None:
    """Refuse a raw priority whose power is infinite.

    Trees may round in another way than torch: what lies within a millionth of the largest number is refused too.

    Raises:
        SpecError: naming the raw priority and its power.

    Example:
        >>> refuse_overflow("Sampler", torch.tensor([1e30]), 0.0, 1.0, torch.float32)
    """
    raw = raw.detach().to("cpu", torch.float64).abs()
    bad = ~(raw.add(eps).pow_(alpha) <= torch.finfo(dtype).max * (1 - 1e-6))
    if bad.any():
        new = "; it is that of new rows, the largest that was ever given, until `empty`" if of_new_rows else ""
        raise SpecError(
            f"{who}: with alpha={alpha} and eps={eps}, the raw priority {raw[bad][0].item():.6g} makes "
            f"(|raw| + eps) ** alpha infinite in {dtype}{new}; nothing was written"
        )
