"""A set of small numbers that lie without gaps in an array, so that one of them is drawn by its place."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["DenseSet", "Longs"]

Longs = NDArray[np.int64]


class DenseSet:
    """Numbers from 0 on. Adding and removing n of them costs n steps, whatever the size of the set.

    Args:
        least: slices of this length are drawn from the members; kept here for whoever holds several sets.

    Example:
        >>> few = DenseSet(1)
        >>> few.update(np.array([7, 3, 5]), np.array([True, True, True]))
        >>> few.update(np.array([7]), np.array([False]))
        >>> sorted(few.members[: len(few)].tolist())
        [3, 5]
    """

    def __init__(self, least: int) -> None:
        self.least: Final = least
        self.members: Longs = np.zeros(16, np.int64)
        self._place: Longs = np.zeros(16, np.int64)  # of each number among the members, plus one; 0 if it is none
        self._len = 0
        self._tensor: tuple[Longs, Tensor] | None = None

    def __len__(self) -> int:
        return self._len

    @property
    def tensor(self) -> Tensor:
        """The memory of `members` as a tensor; numbers behind the last member mean nothing."""
        known = self._tensor
        if known is None or known[0] is not self.members:
            self._tensor = known = self.members, torch.from_numpy(self.members)
        return known[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tensor": None}  # a copy has memory of its own

    def update(self, numbers: Longs, inside: NDArray[np.bool_]) -> None:
        """Let each of `numbers`, all different, be a member where `inside`, and none elsewhere."""
        if not numbers.size:
            return
        self._place = _at_least(self._place, int(numbers.max()) + 1)
        place = self._place[numbers]
        known = place > 0
        if not np.array_equal(known, inside):
            self._remove(place[known & ~inside] - 1)
            self._add(numbers[inside & ~known])

    def discard(self, numbers: Longs) -> None:
        """Let none of `numbers`, all different, be a member."""
        if len(numbers) and int(numbers.max()) >= len(self._place):
            numbers = numbers[numbers < len(self._place)]
        place = self._place[numbers]
        self._remove(place[place > 0] - 1)

    def update_one(self, number: int, *, inside: bool) -> None:
        """The same for one number; quicker."""
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
        """Let these be the members, in this order."""
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
        """Fill the holes at `places` with the last members, those of them that stay."""
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
    """`array`, or a copy of it that is twice as long as needed, with zeros behind."""
    if size <= len(array):
        return array
    grown = np.zeros(2 * size, np.int64)
    grown[: len(array)] = array
    return grown
