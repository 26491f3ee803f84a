"""Validation of stored trajectories, on demand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rl.core.errors import ContractError
from rl.core.keys import NEXT, NestedKey, as_tuple, key_str, unwrap
from rl.replay._slices.sampler import SlicesBase
from rl.replay._slices.trajectories import read_columns

__all__ = ["check_slices"]

_ROWS = 1 << 16  # that are compared at a time


def check_slices(buffer: Any, keys: Sequence[NestedKey] = ("observation",)) -> None:
    """Validate that ``("next", key)`` of each row equals ``key`` of the next row of its trajectory.

    Call it once after filling a buffer: rows of several environments or rollouts that were stored one after the other
    without an end flag between them make slices that cross from one into the other. Data that differ by design
    (multi-step targets, noise added to stored observations) fail it, too.

    Args:
        buffer: with a slice sampler.
        keys: of the entries to compare; rows have each of them, and have it under ``next``. NaN equals NaN.

    Raises:
        ContractError: if the entries of two consecutive rows differ, naming the first such row; if an entry is absent,
            or the buffer has no slice sampler.

    Example:
        >>> from tensordict import TensorDict
        >>> from rl.replay import LazyTensorStorage, ReplayBuffer, SliceSampler
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(9), sampler=SliceSampler(slice_len=2))
        >>> x, done = torch.tensor([0.0, 1, 5, 6]), torch.tensor([False, True, False, True])
        >>> after = TensorDict(observation=x + 1, done=done, batch_size=[4])
        >>> _ = buffer.extend(TensorDict(observation=x, next=after, batch_size=[4]))
        >>> check_slices(buffer)
    """
    sampler, storage = buffer.sampler, buffer.storage
    if not isinstance(sampler, SlicesBase):
        raise ContractError(f"check_slices needs a buffer with a SliceSampler, got a {type(sampler).__name__}")
    rows, is_last = sampler.rows_by_trajectory(storage)
    for key in map(unwrap, keys):
        after = (NEXT, *as_tuple(key))
        for begin in range(0, len(rows) - 1, _ROWS):
            part = rows[begin : begin + _ROWS + 1]
            columns = read_columns(storage, [key, after], part)
            if len(columns) < 2:
                missing = ", ".join(key_str(name) for name in (key, after) if name not in columns)
                raise ContractError(f"check_slices: rows have no {missing}; name another entry with keys=")
            differs = _differ(columns[after][:-1], columns[key][1:]).cpu() & ~is_last[begin : begin + len(part) - 1]
            if differs.any():
                at = int(differs.nonzero()[0])
                raise ContractError(
                    f"check_slices: {key_str(after)} of row {int(part[at])} is not {key_str(key)} of row"
                    f" {int(part[at + 1])}, the next one of its trajectory. Store batches [environments, time] with"
                    " ndim=2, keep the trajectory ids that a collector writes, or set ('next', 'truncated') at the last"
                    " step of each rollout"
                )


def _differ(one: Tensor, other: Tensor) -> Tensor:
    """Which rows differ, bool ``[n]``."""
    if one.shape != other.shape:
        return torch.ones(len(one), dtype=torch.bool)
    differs = (one != other) & ~(one.isnan() & other.isnan())
    return differs.reshape(len(one), -1).any(1)
