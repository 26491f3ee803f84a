"""Elementwise distances of predictions and targets, and reductions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name

from rl.core.errors import ShapeError, SpecError
from rl.objectives._batch.mask import fitted, mean_of

__all__ = ["check_distance", "check_not_empty", "check_reduction", "distance", "is_number", "reduce"]

_DISTANCES: dict[str, Callable[..., Tensor]] = {"l1": F.l1_loss, "l2": F.mse_loss, "smooth_l1": F.smooth_l1_loss}
_REDUCTIONS = ("mean", "sum", "none")


def is_number(value: Any) -> bool:
    """Whether it is a real number, or a tensor of one."""
    if isinstance(value, Tensor):
        return value.numel() == 1 and value.dtype is not torch.bool and not value.is_complex()
    return isinstance(value, Real) and not isinstance(value, bool)


def check_distance(kind: str, owner: str) -> str:
    """Raise unless it is the name of a distance; return it.

    Raises:
        SpecError: if it is not.
    """
    return _known("loss", kind, list(_DISTANCES), owner)


def check_reduction(reduction: str | None, owner: str) -> str:
    """Raise unless it is the name of a reduction; return it, ``"mean"`` for None.

    Raises:
        SpecError: if it is not.
    """
    return _known("reduction", "mean" if reduction is None else reduction, _REDUCTIONS, owner)


def _known(what: str, value: str, known: Sequence[str], owner: str) -> str:
    if value not in known:
        raise SpecError(f"{owner} knows no {what} {value!r}; it knows {', '.join(map(repr, known))}")
    return value


def distance(prediction: Tensor, target: Tensor, kind: str) -> Tensor:
    """Distance per element.

    Args:
        prediction: any shape.
        target: same shape.
        kind: ``"l2"`` (squared error), ``"l1"`` (absolute error) or ``"smooth_l1"`` (half the squared error up to 1,
            linear beyond; Girshick, "Fast R-CNN", 2015, eq. 3).

    Raises:
        ShapeError: if the shapes differ.
        SpecError: if the target has no floating-point type.

    Example:
        >>> import torch
        >>> distance(torch.tensor([3.0]), torch.tensor([1.0]), "l2")
        tensor([4.])
    """
    if prediction.shape != target.shape:
        raise ShapeError(
            f"prediction has shape {tuple(prediction.shape)} and target {tuple(target.shape)}: they would broadcast;"
            " values and targets both are [*B, 1]"
        )
    if not target.is_floating_point():
        raise SpecError(f"the target of a loss is {target.dtype}, expected a floating-point dtype: give target.float()")
    return _DISTANCES[kind](prediction, target, reduction="none")


def check_not_empty(owner: str, batch_size: torch.Size, reduction: str) -> None:
    """Raise if the mean over an empty batch would be NaN.

    Raises:
        ShapeError: if it has no rows.
    """
    if reduction == "mean" and not batch_size.numel():
        raise ShapeError(f"{owner} got a batch without rows, which has no mean: skip it")


def reduce(elements: Tensor, reduction: str, mask: Tensor | None = None) -> Tensor:
    """Reduce elements to their mean or sum, or keep them; padding is masked out.

    Args:
        elements: ``[*B, ...]``.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``, which has 0 at padding.
        mask: bool ``[*B]``, true at valid steps; all are if None.

    Example:
        >>> import torch
        >>> reduce(torch.tensor([1.0, 3.0]), "mean")
        tensor(2.)
    """
    if reduction == "mean":
        return mean_of(elements, mask)
    if mask is not None:
        elements = elements.where(fitted(mask, elements), 0)
    return elements.sum() if reduction == "sum" else elements
