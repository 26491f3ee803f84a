"""Set of integers in an array, for sampling from it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Longs = NDArray[np.int64]


class IndexSet:
    """Set of integers from 0. Adding and removing n of them takes time in proportion to n for every size of the set.

    Args:
        members: Different integers, int64 ``[n]``; the set changes this array.

    Example:
        >>> few = IndexSet(np.array([7, 3, 5]))
        >>> few.update(np.array([7, 4]), np.array([False, True]))
        >>> sorted(few.members.tolist())
        [3, 4, 5]
    """

    def __init__(self, members: Longs) -> None:
        self._members = members
        self._len = len(members)
        self._place: Longs = np.zeros(int(members.max(initial=0)) + 1, np.int64)  # of each integer, plus one
        self._place[members] = np.arange(1, self._len + 1)

    def __len__(self) -> int:
        return self._len

    @property
    def members(self) -> Longs:
        """The integers, in any order, int64 ``[n]``."""
        return self._members[: self._len]

    def update(self, numbers: Longs, inside: NDArray[np.bool_]) -> None:
        """Add each of `numbers` where `inside`, and remove the others; `inside` is the same for equal numbers."""
        try:
            place = self._place[numbers]
        except IndexError:
            self._place = _at_least(self._place, int(numbers.max()) + 1)
            place = self._place[numbers]
        changed = numbers[(place > 0) != inside]
        if changed.size:
            changed = unique(changed)
            place = self._place[changed]
            self._remove(place[place > 0] - 1)
            self._add(changed[place == 0])

    def _add(self, numbers: Longs) -> None:
        end = self._len + numbers.size
        self._members = _at_least(self._members, end)
        self._members[self._len : end] = numbers
        self._place[numbers] = np.arange(self._len + 1, end + 1)
        self._len = end

    def _remove(self, places: Longs) -> None:
        """Remove the members at `places`; the last remaining members fill the gaps."""
        if not places.size:
            return
        left = self._len - places.size
        self._place[self._members[places]] = 0
        stays = np.ones(places.size, np.bool_)
        stays[places[places >= left] - left] = False
        holes, movers = places[places < left], self._members[left : self._len][stays]
        self._members[holes] = movers
        self._place[movers] = holes + 1
        self._len = left


def unique(numbers: Longs) -> Longs:
    """As `np.unique`, in half of its time for a few numbers."""
    if len(numbers) < 2:
        return numbers
    numbers = np.sort(numbers)
    first = np.ones(len(numbers), np.bool_)
    first[1:] = numbers[1:] != numbers[:-1]
    return numbers[first]


def _at_least(array: Longs, size: int) -> Longs:
    """`array` if it has `size` elements, else a copy of ``2 * size`` elements, padded with zeros."""
    if size <= len(array):
        return array
    grown = np.zeros(2 * size, np.int64)
    grown[: len(array)] = array
    return grown


def distinct(draw: Callable[[int], Tensor], count: int, rounds: int = 64) -> Longs:
    """Return the first `count` different numbers of a random sequence, int64 ``[n]``; fewer if they do not come soon.

    Each next number is distributed as a sample of the numbers that were not found before.

    Args:
        draw: Function that samples the next n numbers of the sequence.
        count: Number of integers to return.
        rounds: Number of times to sample twice as many as are missing.

    Example:
        >>> import torch
        >>> numbers = iter([torch.tensor([3, 3, 5, 3]), torch.tensor([5, 1])])
        >>> distinct(lambda n: next(numbers), 3).tolist()
        [3, 5, 1]
    """
    found: Longs = np.empty(0, np.int64)
    for _ in range(rounds):
        more = np.concatenate((found, draw(2 * (count - len(found))).cpu().numpy()))
        found = more[np.sort(np.unique(more, return_index=True)[1])][:count]
        if len(found) == count:
            break
    return found
