"""Memory in which the entries of a row lie side by side, so that a row is one place in memory, not many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

import torch
from torch import Tensor

from rl.core.keys import NestedKey
from rl.replay._layout import Column

__all__ = ["Interleaved"]

_LINE: Final = 64
"""Bytes that memory gives at once. Rows begin with one where that adds little."""
_LONGEST: Final = 512
"""Bytes of an entry that shares a row: an image is as quick to copy wherever it lies."""
_CACHED: Final = 2**22
"""Bytes that caches hold: there a key of its own place is quicker, above all to copy runs of rows."""


@final
class Interleaved:
    """The short entries of all rows in one block ``[rows, pitch]`` of bytes.

    Args:
        columns: what a row has, all with a dtype.
        rows: how many.

    Example:
        >>> columns = {"x": Column(torch.Size([3]), torch.float32), "flag": Column(torch.Size([]), torch.bool)}
        >>> memory = Interleaved(columns, 10)
        >>> memory.block.shape, {key: (cell.shape, cell.stride()) for key, cell in memory.cells().items()}
        (torch.Size([10, 16]), {'x': (torch.Size([10, 3]), (4, 1)), 'flag': (torch.Size([10]), (16,))})
    """

    def __init__(self, columns: Mapping[NestedKey, Column], rows: int) -> None:
        self._columns: Final = dict(columns)
        # Large numbers first: none lies across a multiple of its own size then, and nothing is left out between them.
        self._places: dict[NestedKey, int] = {}
        end = 0
        for key in sorted(columns, key=lambda key: -_itemsize(columns[key])):
            self._places[key] = end
            end += _bytes(columns[key])
        self.block: Final = torch.empty((rows, _pitch(columns)), dtype=torch.uint8, device="cpu")

    def __contains__(self, key: object) -> bool:
        return key in self._columns

    @staticmethod
    def worth(columns: Mapping[NestedKey, Column], rows: int) -> dict[NestedKey, Column]:
        """Those of `columns` that are to lie side by side; none where caches hold all of them, or much is left unused.

        Much is more than a quarter of what a row has, long entries included.
        """
        short = {key: column for key, column in columns.items() if 0 < _bytes(column) <= _LONGEST}
        size = _sum(short)
        if len(short) < 2 or rows * size < _CACHED or (_pitch(short) - size) * 4 > _sum(columns):
            return {}
        return short

    def cell(self, key: NestedKey) -> Tensor:
        """What `key` names in all rows, ``[rows, ...]``: a view of the block."""
        column, place = self._columns[key], self._places[key]
        assert column.dtype is not None
        flat = self.block[:, place : place + _bytes(column)].view(column.dtype)
        return flat.unflatten(1, column.shape) if column.shape else flat.squeeze(1)

    def cells(self) -> dict[NestedKey, Tensor]:
        """All of them."""
        return {key: self.cell(key) for key in self._columns}


def _itemsize(column: Column) -> int:
    assert column.dtype is not None
    return column.dtype.itemsize


def _bytes(column: Column) -> int:
    return 0 if column.dtype is None else column.shape.numel() * column.dtype.itemsize


def _sum(columns: Mapping[NestedKey, Column]) -> int:
    return sum(map(_bytes, columns.values()))


def _pitch(columns: Mapping[NestedKey, Column]) -> int:
    """Bytes from row to row: a multiple of the largest number; of a line, if that takes at most an eighth more."""
    size, number = _sum(columns), max(map(_itemsize, columns.values()))
    lines = -(-size // _LINE) * _LINE
    return lines if lines * 8 <= size * 9 else -(-size // number) * number
