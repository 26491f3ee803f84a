"""Set of integers in an array, for sampling from it."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["IndexSet", "Longs"]

Longs = NDArray[np.int64]


class IndexSet:
    """Set of integers from 0. Adding and removing n of them takes n steps for every size of the set.

    Args:
        least: a number that the owner of several sets tells them apart by.

    Example:
        >>> few = IndexSet(1)
        >>> few.update(np.array([7, 3, 5]), np.array([True, True, True]))
        >>> few.update(np.array([7]), np.array([False]))
        >>> sorted(few.members[: len(few)].tolist())
        [3, 5]
    """

    def __init__(self, least: int = 0) -> None:
        self.least: Final = least
        self.members: Longs = np.zeros(16, np.int64)
        self._place: Longs = np.zeros(16, np.int64)  # of each integer in `members`, plus one; 0 if absent
        self._len = 0

    def __len__(self) -> int:
        return self._len

    def update(self, numbers: Longs, inside: NDArray[np.bool_]) -> None:
        """Add each of `numbers`, all different, where `inside`, and remove the others."""
        if not numbers.size:
            return
        self._place = _at_least(self._place, int(numbers.max()) + 1)
        place = self._place[numbers]
        known = place > 0
        if not np.array_equal(known, inside):
            self._remove(place[known & ~inside] - 1)
            self._add(numbers[inside & ~known])

    def discard(self, numbers: Longs) -> None:
        """Remove `numbers`, all different, if present."""
        if len(numbers) and int(numbers.max()) >= len(self._place):
            numbers = numbers[numbers < len(self._place)]
        place = self._place[numbers]
        self._remove(place[place > 0] - 1)

    def update_one(self, number: int, *, inside: bool) -> None:
        """`update` of one integer; faster."""
        if number >= len(self._place):
            self._place = _at_least(self._place, number + 1)
        place = int(self._place[number])
        if inside and not place:
            if self._len == len(self.members):
                self.members = _at_least(self.members, self._len + 1)
            self.members[self._len] = number
            self._len += 1
            self._place[number] = self._len
        elif place and not inside:
            self._len -= 1
            last = self.members[self._len]
            self.members[place - 1] = last
            self._place[last] = place
            self._place[number] = 0

    def replace(self, members: Longs) -> None:
        """Replace the members, in this order."""
        self._len = 0
        self._place = np.zeros(max(int(members.max(initial=0)) + 1, 16), np.int64)
        self._add(members)

    def _add(self, numbers: Longs) -> None:
        count = numbers.size
        self.members = _at_least(self.members, self._len + count)
        self.members[self._len : self._len + count] = numbers
        self._place[numbers] = np.arange(self._len + 1, self._len + count + 1)
        self._len += count

    def _remove(self, places: Longs) -> None:
        """Remove the members at `places`; the last remaining members fill the gaps."""
        if not places.size:
            return
        left = self._len - places.size
        self._place[self.members[places]] = 0
        stays = np.ones(places.size, np.bool_)
        stays[places[places >= left] - left] = False
        holes, movers = places[places < left], self.members[left : self._len][stays]
        self.members[holes] = movers
        self._place[movers] = holes + 1
        self._len = left


def _at_least(array: Longs, size: int) -> Longs:
    """`array` if it has `size` elements, else a copy of ``2 * size`` elements, padded with zeros."""
    if size <= len(array):
        return array
    grown = np.zeros(2 * size, np.int64)
    grown[: len(array)] = array
    return grown
