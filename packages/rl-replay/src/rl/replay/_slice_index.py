"""From random numbers to the rows of slices: arrays in, arrays out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rl.replay._dense_set import Longs
from rl.replay._segments import BASE, FROM, ROW, STRIDE, TO

__all__ = ["Span", "pick", "place_slices", "slice_rows"]

Span = tuple[int, int]
"""How many steps of a slice may lie before the first step of its trajectory, and how many behind the last one."""


def pick(u: NDArray[np.float64], choices: Longs | int) -> Longs:
    """Whole numbers in [0, choices), uniform as `u` is in [0, 1).

    Example:
        >>> pick(np.array([0.0, 0.5, 0.999]), 3).tolist()
        [0, 1, 2]
    """
    return np.minimum((u * choices).astype(np.int64), choices - 1)  # a product may be rounded up to `choices`


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


def slice_rows(lines: Longs, first: Longs, steps: Longs | None, length: int, capacity: int, *, plain: bool) -> Longs:
    """Rows of slices, int64 ``[n, length]``; behind the end of a shorter slice its last row is repeated.

    Args:
        lines: of the trajectories, int64 ``[n, 5]``.
        first: first step of each slice, int64 ``[n]``.
        steps: how many steps each slice has, int64 ``[n]``; `length` if None.
        length: of the longest slice.
        capacity: rows of the ring.
        plain: all steps of a trajectory lie side by side in the ring.

    Example:
        >>> line = np.array([[98, 0, 10, 1 << 60, 1 << 60]])
        >>> slice_rows(line, np.array([0]), None, 4, 100, plain=True).tolist()
        [[98, 99, 0, 1]]
        >>> line = np.array([[2, 0, 4, 2, 8]])  # two steps of each batch of eight rows
        >>> slice_rows(line, np.array([0]), None, 4, 100, plain=False).tolist()
        [[2, 3, 10, 11]]
    """
    ahead = np.arange(length)
    if steps is not None:
        ahead = np.minimum(ahead, (steps - 1)[:, None])
    if plain:
        rows = ((lines[:, BASE] + first) % capacity)[:, None] + ahead
        if int(rows[:, -1].max()) >= capacity:
            rows %= capacity
        return rows
    row = lines[:, ROW]
    inside = first % row
    begin = lines[:, BASE] + first // row * lines[:, STRIDE] + inside
    begin %= capacity
    rows = begin[:, None] + ahead
    if int((row - inside).min(initial=length)) < length:  # a slice goes on in another batch
        batches = (inside[:, None] + ahead) // row[:, None]
        rows += batches * (lines[:, STRIDE] - row)[:, None]
    rows %= capacity
    return rows
