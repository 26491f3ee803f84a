"""All values of a discrete spec."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from rl.core.errors import SpecError
from rl.core.specs._base import TensorSpec

__all__ = ["all_values", "check_count"]

_MOST = 2**24  # as many rows as a table of choices can sensibly have


def check_count(spec: TensorSpec) -> int:
    """The cardinality, if that many values can be listed.

    Raises:
        SpecError: if there are too many.
    """
    count = spec.cardinality()
    if count > _MOST:
        raise SpecError(
            f"{type(spec).__name__} of shape {tuple(spec.shape)} has {count} values: at most {_MOST} can be enumerated"
        )
    return int(count)


def all_values(spec: TensorSpec, options: Sequence[Sequence[int]]) -> Tensor:
    """Every combination of the options of each element, the last element fastest: ``[count, len(options)]``.

    Args:
        spec: whose values; its shape is given to the result if it has as many elements as `options`.
        options: for each element, what it can be.
    """
    count = check_count(spec)
    rows = torch.empty(count, len(options), dtype=torch.int64, device=spec.device)
    inner = prod(len(option) for option in options)
    outer = 1
    for place, option in enumerate(options):
        inner //= len(option)
        column = torch.tensor(list(option), dtype=torch.int64, device=spec.device)
        rows[:, place] = column.repeat_interleave(inner).repeat(outer)
        outer *= len(option)
    return rows.reshape(count, *spec.shape) if len(options) == spec.numel() else rows
