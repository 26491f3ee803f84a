"""Domains, returned by ``spec.space``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import indent

import torch
from torch import Tensor

__all__ = ["CategoricalBox", "ContinuousBox"]


def _tensor_summary(tensor: Tensor) -> str:
    return (
        f"Tensor(shape={tensor.shape}, device={tensor.device}, dtype={tensor.dtype},"
        f" contiguous={tensor.is_contiguous()})"
    )


@dataclass(frozen=True, eq=False, repr=False)
class ContinuousBox:
    """An interval for each element.

    Args:
        low: smallest values, ``[*shape]``.
        high: largest values, ``[*shape]``; they belong to the domain.

    Example:
        >>> box = ContinuousBox(torch.zeros(2), torch.ones(2))
        >>> low, high = box
        >>> high
        tensor([1., 1.])
    """

    low: Tensor
    high: Tensor

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.low, self.high))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ContinuousBox):
            return NotImplemented
        return torch.equal(self.low, other.low) and torch.equal(self.high, other.high)

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # compared by content that can change

    def __repr__(self) -> str:
        rows = f"low={_tensor_summary(self.low)},\nhigh={_tensor_summary(self.high)}"
        return f"ContinuousBox(\n{indent(rows, '    ')})"


@dataclass(frozen=True)
class CategoricalBox:
    """The integers from 0 to ``n - 1``.

    Args:
        n: how many, at least 1.

    Example:
        >>> CategoricalBox(3)
        CategoricalBox(n=3)
    """

    n: int
