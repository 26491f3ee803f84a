"""Conversion and validation of indices, priorities and exponents of a prioritized sampler."""

from __future__ import annotations

import mmap
from contextlib import suppress
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from rl.core.errors import ContractError, ShapeError, SpecError
from rl.replay._arguments import to_device
from rl.replay._priority.checks import zeros

__all__ = [
    "as_index",
    "as_priority",
    "check_exponent",
    "check_finite",
    "check_overflow",
    "check_reduction",
    "flat_priority",
    "large_zeros",
    "powers",
]

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
        SpecError: if memory is short.

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
        ContractError: if there is no such reduction.
    """
    if reduction not in _REDUCTIONS:
        raise ContractError(f"{owner}: reduction must be one of {', '.join(_REDUCTIONS)}, got {reduction!r}")


def check_exponent(owner: str, name: str, value: Any) -> float:
    """`value` as a float.

    Raises:
        SpecError: if it is not a number, or negative, infinite or NaN.

    Example:
        >>> check_exponent("Sampler", "beta", 1)
        1.0
    """
    try:
        number = float("nan") if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not (isfinite(number) and number >= 0):
        raise SpecError(f"{owner}: {name} must be a number, finite and not negative, got {value!r}")
    return number


def as_index(owner: str, index: Any, device: torch.device) -> Tensor:
    """Indices as int64 ``[n]`` on `device`.

    Raises:
        SpecError: if they are not integers.

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
            raise SpecError(f"{owner}: an index is an integer, got {index.dtype}")
        index = index.long()
    if index.device != device:
        index = to_device(index, device)
    return index if index.dim() == 1 else index.reshape(-1)


def _tensor(owner: str, expected: str, value: Any) -> Tensor:
    try:
        return torch.as_tensor(value, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise SpecError(f"{owner}: {expected}, got {value!r}; nothing was written") from error


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
        SpecError: if they are not real numbers.
        ShapeError: if they are neither ``[rows, ...]`` nor one number.

    Example:
        >>> as_priority("Sampler", torch.tensor([[1.0, -3.0], [0.0, 2.0]]), 2, "max", torch.zeros(1))
        tensor([3., 2.])
    """
    if not isinstance(priority, Tensor):
        priority = _tensor(owner, "a priority is a number, or a tensor of them", priority)
    elif priority.requires_grad:
        priority = priority.detach()
    if priority.is_complex():
        raise SpecError(f"{owner}: a priority is a real number, got {priority.dtype}; give its absolute value")
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
        SpecError: if a raw priority is infinite or NaN and alpha is 0, so that its power is 1.

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
        SpecError: if one is infinite or NaN.
    """
    bad = ~priority.isfinite()
    if bad.any():
        raise SpecError(
            f"{owner}: a priority is a finite number, got {priority[bad][0].item()} at place "
            f"{int(bad.nonzero()[0])}; nothing was written. Does the loss diverge?"
        )


def check_overflow(
    owner: str, raw: Tensor, eps: float, alpha: float, dtype: torch.dtype, *, of_new_rows: bool = False
) -> None:
    """Check that no power of a raw priority is infinite.

    Trees may round differently from torch: the limit is a millionth below the largest number of `dtype`.

    Raises:
        SpecError: naming the raw priority and its power.

    Example:
        >>> check_overflow("Sampler", torch.tensor([1e30]), 0.0, 1.0, torch.float32)
    """
    raw = raw.detach().to("cpu", torch.float64).abs()
    bad = ~(raw.add(eps).pow_(alpha) <= torch.finfo(dtype).max * (1 - 1e-6))
    if bad.any():
        new = "; new rows get the largest raw priority since `empty`" if of_new_rows else ""
        raise SpecError(
            f"{owner}: with alpha={alpha} and eps={eps}, the raw priority {raw[bad][0].item():.6g} makes "
            f"(|raw| + eps) ** alpha infinite in {dtype}{new}; nothing was written"
        )
