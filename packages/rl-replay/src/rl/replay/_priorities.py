"""What is given as index and priority, in the form that a prioritized sampler keeps."""

from __future__ import annotations

from math import isfinite
from typing import Any

import torch
from torch import Tensor

from rl.core.errors import ContractError, ShapeError, SpecError

__all__ = ["as_index", "as_priority", "check_reduction", "refuse_bad", "refuse_exponent"]

_REDUCTIONS = {
    "max": lambda values: values.amax(-1),
    "min": lambda values: values.amin(-1),
    "mean": lambda values: values.mean(-1),
    "median": lambda values: values.median(-1).values,
}


def check_reduction(who: str, reduction: str) -> None:
    """Refuse what is no reduction.

    Raises:
        ContractError: naming those that there are.
    """
    if reduction not in _REDUCTIONS:
        raise ContractError(f"{who}: reduction must be one of {', '.join(_REDUCTIONS)}, got {reduction!r}")


def refuse_exponent(who: str, name: str, value: float) -> float:
    """`value` as a float.

    Raises:
        ContractError: if it is negative, infinite or not a number.
    """
    value = float(value)
    if not (isfinite(value) and value >= 0):
        raise ContractError(f"{who}: {name} must be finite and not negative, got {value}")
    return value


def as_index(who: str, index: Any, device: torch.device) -> Tensor:
    """Indices as int64 ``[n]`` on `device`.

    Raises:
        SpecError: if they are no integers.

    Example:
        >>> as_index("Sampler", 3, torch.device("cpu"))
        tensor([3])
    """
    if not isinstance(index, Tensor):
        index = torch.as_tensor(index)
        if not index.numel():
            index = index.long()
    if index.dtype is not torch.int64:
        if index.is_floating_point() or index.is_complex() or index.dtype is torch.bool:
            raise SpecError(f"{who}: an index is an integer, got {index.dtype}")
        index = index.long()
    if index.device != device:
        index = index.to(device)
    return index if index.dim() == 1 else index.reshape(-1)


def as_priority(who: str, priority: Any, rows: int, reduction: str, like: Tensor) -> Tensor:
    """Raw priorities ``[rows]`` of the dtype and device of `like`, without history.

    Raises:
        ShapeError: if they are neither ``[rows, ...]`` nor one number.

    Example:
        >>> as_priority("Sampler", torch.tensor([[1.0, -3.0], [0.0, 2.0]]), 2, "max", torch.zeros(1))
        tensor([3., 2.])
    """
    if not isinstance(priority, Tensor):
        priority = torch.as_tensor(priority)
    elif priority.requires_grad:
        priority = priority.detach()
    if priority.dtype is not like.dtype or priority.device != like.device:
        priority = priority.to(like)
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
