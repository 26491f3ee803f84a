"""From random numbers to the rows of slices: arrays in, arrays out."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl.replay._dense_set import Longs
from rl.replay._segments import BASE, FROM, ROW, STRIDE, TO

__all__ = ["Rows", "Span", "pick", "place_slices", "slice_rows", "whole_rows"]

Span = tuple[int, int]
"""How many steps of a slice may lie before the first step of its trajectory, and how many behind the last one."""


def pick(u: NDArray[np.float64], choices: Longs | int) -> Longs:
    """Whole numbers in [0, choices), uniform as `u` is in [0, 1).

    Args:
        u: multiples of 2^-53, as torch draws them: the largest is 1 - 2^-53, and no product is rounded up to `choices`.
        choices: how many numbers there are, below 2^53.

    Example:
        >>> pick(np.array([0.0, 0.5, 1 - 2.0**-53]), 3).tolist()
        [0, 1, 2]
    """
    return (u * choices).astype(np.int64)


def place_slices(lines: Longs, u: NDArray[np.float64], length: int, span: Span) -> tuple[Longs, Longs]:
    """First steps of slices and how many steps they have, int64 ``[n]`` each.

    A slice may begin at each step of its trajectory from which `length` steps are left, with equal probability. With a
    `span` it may also begin before the first one or end behind the last one; what is outside is cut off. A shorter
    trajectory is taken whole.

    Args:
        lines: of the trajectories, one for each slice; int64 ``[n, 5]``, see `rl.replay._segments`.
        u: uniform in [0, 1), float64 ``[n]``.
        length: of a slice.
        span: how far a slice may reach beyond its trajectory.

    Example:
        >>> line = np.array([[0, 3, 10, 1 << 60, 1 << 60]])  # steps 3 to 9
        >>> [steps.tolist() for steps in place_slices(line, np.array([0.99]), 4, (0, 0))]
        [[6], [4]]
        >>> [steps.tolist() for steps in place_slices(line, np.array([0.99]), 4, (0, 2))]
        [[8], [2]]
    """
    start = lines[:, FROM]
    have = lines[:, TO] - start
    full = np.minimum(have, length)
    if span == (0, 0):
        return start + pick(u, have - full + 1), full
    before, behind = np.minimum(full - 1, span[0]), np.minimum(full - 1, span[1])
    begin = pick(u, have - full + before + behind + 1) - before
    end = np.minimum(begin + full, have)
    begin = np.maximum(begin, 0)
    return start + begin, end - begin


def whole_rows(lines: Tensor, u: Tensor, length: int, capacity: int, *, wraps: bool) -> tuple[Tensor, Tensor | None]:
    """Rows of slices that have all of their steps, side by side: what `place_slices` and `slice_rows` make of such.

    Slices are few as a rule, so that calls cost more than numbers. All of these go through torch, as the random numbers
    and the rows do: nothing is handed over to numpy and back.

    Args:
        lines: as in `place_slices`, each of `length` steps at least.
        u: float64 ``[n]``, on the CPU.
        length: of a slice.
        capacity: rows of the ring.
        wraps: rows were overwritten, so that numbers go beyond the capacity, and a slice may go on at the front.

    Returns:
        Rows int64 ``[n, length]``, and where they begin, int64 ``[n]``; None if some slice goes on at the front.

    Example:
        >>> line = torch.tensor([[98, 0, 10, 1 << 60, 1 << 60]])
        >>> whole_rows(line, torch.tensor([0.99]), 4, 100, wraps=True)
        (tensor([[4, 5, 6, 7]]), tensor([4]))
    """
    base, start, to, _, _ = lines.unbind(1)
    begin = (u * (to - start - (length - 1))).long()  # never rounded up, see `pick`
    begin += start
    begin += base
    if wraps:
        begin %= capacity
    rows = begin.unsqueeze(1) + _counted_tensor(length)
    if wraps and max(begin.tolist()) + length > capacity:
        rows %= capacity
        return rows, None
    return rows, begin


class Rows(NamedTuple):
    """Rows of slices.

    Args:
        places: int64 ``[n, length]``, or ``[sum of the steps]``, one slice behind the other.
        begin: where the rows of each slice begin, if each has `length` that lie side by side; int64 ``[n]``.
    """

    places: Longs
    begin: Longs | None


def slice_rows(
    lines: Longs, first: Longs, steps: Longs | None, length: int, capacity: int, *, plain: bool, pad: bool = False
) -> Rows:
    """Rows of slices.

    Args:
        lines: of the trajectories, int64 ``[n, 5]``.
        first: first step of each slice, int64 ``[n]``.
        steps: how many steps each slice has, int64 ``[n]``; `length` if None.
        length: of the longest slice.
        capacity: rows of the ring.
        plain: all steps of a trajectory lie side by side in the ring.
        pad: behind the end of a shorter slice its last row is repeated.

    Example:
        >>> line = np.array([[98, 0, 10, 1 << 60, 1 << 60]])
        >>> slice_rows(line, np.array([0]), None, 4, 100, plain=True).places.tolist()
        [[98, 99, 0, 1]]
        >>> slice_rows(line, np.array([5]), np.array([2]), 4, 100, plain=True).places.tolist()
        [3, 4]
        >>> line = np.array([[2, 0, 4, 2, 8]])  # two steps of each batch of eight rows
        >>> slice_rows(line, np.array([0]), None, 4, 100, plain=False).places.tolist()
        [[2, 3, 10, 11]]
    """
    if plain:
        begin = (lines[:, BASE] + first) % capacity
        index = _ahead(begin, steps, length, pad=pad)
        if int(begin.max()) + length <= capacity:
            return Rows(index, begin if steps is None else None)
        index %= capacity
        return Rows(index, None)
    row, stride = lines[:, ROW], lines[:, STRIDE]
    inside = first % row
    begin = lines[:, BASE] + first // row * stride + inside
    begin %= capacity
    index = _ahead(begin, steps, length, pad=pad)
    jumps = int((row - inside).min()) < length  # a slice may go on in another batch
    if not jumps and int(begin.max()) + length <= capacity:
        return Rows(index, begin if steps is None else None)
    if jumps:
        batch = _ahead(inside, steps, length, pad=pad)
        if index.ndim == 1:
            assert steps is not None
            row, stride = row.repeat(steps), stride.repeat(steps)
        else:
            row, stride = row[:, None], stride[:, None]
        batch //= row
        index += batch * (stride - row)
    index %= capacity
    return Rows(index, None)


def _ahead(begin: Longs, steps: Longs | None, length: int, *, pad: bool) -> Longs:
    """`begin` and the numbers that follow, as many as each slice has steps."""
    if steps is None:
        return begin[:, None] + _counted(length)
    if pad:
        return begin[:, None] + np.minimum(_counted(length), (steps - 1)[:, None])
    ends = steps.cumsum()
    found = (begin - ends + steps).repeat(steps)
    found += np.arange(ends[-1])
    return found


@lru_cache(maxsize=16)
def _counted(length: int) -> Longs:
    """Numbers from 0 on; kept, nobody writes into them."""
    return np.arange(length)


@lru_cache(maxsize=16)
def _counted_tensor(length: int) -> Tensor:
    return torch.arange(length, device="cpu")
