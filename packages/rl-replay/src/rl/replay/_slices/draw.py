"""From random numbers to the rows of slices: arrays in, arrays out."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl.replay._slices.index_set import Longs
from rl.replay._slices.table import BASE, FROM, ROW, STRIDE, TO

__all__ = ["Span", "Steps", "pick", "place_slices", "slice_rows", "whole_rows"]

Span = tuple[int, int]
"""How many steps of a slice may lie before the first step of its trajectory, and how many behind the last one."""


class Steps(NamedTuple):
    """Of slices of which some are shorter than others.

    Args:
        each: how many steps each has, int64 ``[n]``.
        ends: how many it has together with those before it, int64 ``[n]``.
    """

    each: Longs
    ends: Longs


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


def place_slices(
    lines: Longs, u: NDArray[np.float64], length: int, span: Span, *, whole: bool = False
) -> tuple[Longs, Steps | None]:
    """First steps of slices, int64 ``[n]``, and how many steps they have; None if all have `length`.

    A slice may begin at each step of its trajectory from which `length` steps are left, with equal probability. With a
    `span` it may also begin before the first one or end behind the last one; what is outside is cut off. A shorter
    trajectory is taken whole.

    Args:
        lines: of the trajectories, one for each slice; int64 ``[n, 5]``, see `rl.replay._slices.table`.
        u: uniform in [0, 1), float64 ``[n]``.
        length: of a slice.
        span: how far a slice may reach beyond its trajectory.
        whole: no trajectory is shorter than a slice, and there is no span; nobody looks.

    Example:
        >>> line = np.array([[0, 3, 10, 1 << 60, 1 << 60]])  # steps 3 to 9
        >>> place_slices(line, np.array([0.99]), 4, (0, 0))
        (array([6]), None)
        >>> place_slices(line, np.array([0.99]), 4, (0, 2))
        (array([8]), Steps(each=array([2]), ends=array([2])))
    """
    start = lines[:, FROM]
    have = lines[:, TO] - start
    if whole:
        have -= length - 1
        return start + pick(u, have), None
    steps = np.minimum(have, length)
    if span == (0, 0):
        begin = pick(u, have - steps + 1)
    else:
        before, behind = np.minimum(steps - 1, span[0]), np.minimum(steps - 1, span[1])
        begin = pick(u, have - steps + before + behind + 1) - before
        end = np.minimum(begin + steps, have)
        begin = np.maximum(begin, 0)
        steps = end - begin
    ends = steps.cumsum()
    return start + begin, None if ends[-1] == length * len(ends) else Steps(steps, ends)


def whole_rows(
    oldest: Tensor, have: Tensor, u: Tensor, length: int, capacity: int, *, wraps: bool
) -> tuple[Tensor, Tensor | None]:
    """Rows of slices that have all of their steps, side by side: what `place_slices` and `slice_rows` make of such.

    All in torch, as gathering the rows: between two training steps the first calls into another library take longer
    than all that there is to compute.

    Args:
        oldest: numbers of the first rows of the trajectories, int64 ``[n]``.
        have: steps of each, int64 ``[n]``, `length` at least.
        u: uniform in [0, 1), float64 ``[n]``, on the CPU.
        length: of a slice.
        capacity: rows of the ring.
        wraps: see `slice_rows`.

    Returns:
        As `slice_rows`.

    Example:
        >>> whole_rows(torch.tensor([98]), torch.tensor([10]), torch.tensor([0.99]), 4, 100, wraps=True)
        (tensor([4, 5, 6, 7]), tensor([4]))
    """
    begin = ((have - (length - 1)) * u).long()  # never rounded up, see `pick`
    begin += oldest
    if wraps:
        begin %= capacity
    rows = (begin.unsqueeze(1) + _counted_tensor(length)).view(-1)
    if wraps and max(begin.tolist()) + length > capacity:
        rows %= capacity
        return rows, None
    return rows, begin


def slice_rows(
    lines: Longs,
    first: Longs,
    steps: Steps | None,
    length: int,
    capacity: int,
    *,
    plain: bool,
    wraps: bool = True,
    pad: bool = False,
) -> tuple[Longs, Longs | None]:
    """Rows of slices.

    Args:
        lines: of the trajectories, int64 ``[n, 5]``.
        first: first step of each slice, int64 ``[n]``.
        steps: how many steps each slice has; `length` if None.
        length: of the longest slice.
        capacity: rows of the ring.
        plain: all steps of a trajectory lie side by side in the ring.
        wraps: rows were overwritten, so that numbers go beyond the capacity, and a slice may go on at the front.
        pad: behind the end of a shorter slice its last row is repeated.

    Returns:
        Rows, one slice behind the other, int64 ``[sum of the steps]``, or ``[n * length]`` with `pad`; and where each
        slice begins, int64 ``[n]``, if all have `length` rows that lie side by side.

    Example:
        >>> line = np.array([[98, 0, 10, 1 << 60, 1 << 60]])
        >>> slice_rows(line, np.array([0]), None, 4, 100, plain=True)
        (array([98, 99,  0,  1]), None)
        >>> slice_rows(line, np.array([5]), None, 4, 100, plain=True)
        (array([3, 4, 5, 6]), array([3]))
        >>> slice_rows(line, np.array([5]), Steps(np.array([2]), np.array([2])), 4, 100, plain=True)
        (array([3, 4]), None)
        >>> line = np.array([[2, 0, 4, 2, 8]])  # two steps of each batch of eight rows
        >>> slice_rows(line, np.array([0]), None, 4, 100, plain=False)
        (array([ 2,  3, 10, 11]), None)
    """
    jumps: Longs | None = None
    begin = lines[:, BASE] + first
    if not plain:
        skipped, jumps = _over_batches(lines, first, steps, length, pad=pad)
        begin += skipped
    if wraps:
        begin %= capacity
    index = _ahead(begin, steps, length, pad=pad)
    if jumps is not None:
        index += jumps
    elif not wraps or np.maximum.reduce(begin) + length <= capacity:
        return index, begin if steps is None else None
    if wraps:
        np.subtract(index, capacity, out=index, where=index >= capacity)  # all are below twice that; `%` takes longer
    return index, None


def _over_batches(
    lines: Longs, first: Longs, steps: Steps | None, length: int, *, pad: bool
) -> tuple[Longs, Longs | None]:
    """How many rows of other lanes lie before the first step of each slice, and how many from there to each other step.

    The latter is None if no slice goes on in another batch.
    """
    row, others = lines[:, ROW], lines[:, STRIDE] - lines[:, ROW]
    alike = bool((lines[:, ROW:] == lines[0, ROW:]).all())
    if alike:
        row, others = row[0], others[0]  # dividing by one number takes a sixth of the time
    batch, inside = np.divmod(first, row)
    before = batch * others
    if np.maximum.reduce(inside - row) + length <= 0:
        return before, None
    further = _ahead(inside, steps, length, pad=pad)
    if not alike:
        times = length if steps is None or pad else steps.each
        row, others = row.repeat(times), others.repeat(times)
    further //= row
    further *= others
    return before, further


def _ahead(begin: Longs, steps: Steps | None, length: int, *, pad: bool) -> Longs:
    """`begin` and the numbers that follow, as many as each slice has steps; one slice behind the other."""
    if steps is None:
        found = begin.repeat(length)
        found += _counted(length, len(begin))
    elif pad:
        found = (begin[:, None] + np.minimum(_counted(length, 1), (steps.each - 1)[:, None])).reshape(-1)
    else:
        found = (begin - steps.ends + steps.each).repeat(steps.each)
        found += _counted(length * len(begin), 1)[: len(found)]
    return found


@lru_cache(maxsize=8)
def _counted(length: int, times: int) -> Longs:
    """Numbers from 0 on, so many times; kept, nobody writes into them."""
    return np.tile(np.arange(length), times)


@lru_cache(maxsize=8)
def _counted_tensor(length: int) -> Tensor:
    return torch.arange(length, device="cpu")
