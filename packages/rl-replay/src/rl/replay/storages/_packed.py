"""Packed rows: the short entries of a row are adjacent in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

import torch
from torch import Tensor

from rl.core.keys import NestedKey
from rl.replay._layout import Column

__all__ = ["Interleaved"]

_LINE: Final = 64
"""Bytes of a cache line. Rows begin at one if that adds little memory."""
_LONGEST: Final = 512
"""Most bytes of a packed entry: packing does not make copies of images faster."""
_CACHED: Final = 2**22
"""Bytes that caches hold: below, one tensor for each key is faster, above all for runs of rows."""


@final
class Interleaved:
    """The short entries of all rows in one block ``[rows, pitch]`` of bytes.

    Args:
        columns: entries of a row, all with a dtype.
        rows: number of rows.

    Example:
        >>> columns = {"x": Column(torch.Size([3]), torch.float32), "flag": Column(torch.Size([]), torch.bool)}
        >>> memory = Interleaved(columns, 10)
        >>> memory.block.shape, {key: (cell.shape, cell.stride()) for key, cell in memory.cells().items()}
        (torch.Size([10, 16]), {'x': (torch.Size([10, 3]), (4, 1)), 'flag': (torch.Size([10]), (16,))})
    """

    def __init__(self, columns: Mapping[NestedKey, Column], rows: int) -> None:
        self._columns: Final = dict(columns)
        # Large elements first, so that each is aligned to its own size without padding between entries.
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
        """Columns to be packed; none if caches hold all rows, or padding exceeds a quarter of a row."""
        short = {key: column for key, column in columns.items() if 0 < _bytes(column) <= _LONGEST}
        size = _sum(short)
        if len(short) < 2 or rows * size < _CACHED or (_pitch(short) - size) * 4 > _sum(columns):
            return {}
        return short

    def cell(self, key: NestedKey) -> Tensor:
        """Entry `key` of all rows ``[rows, ...]``, a view of the block."""
        column, place = self._columns[key], self._places[key]
        assert column.dtype is not None
        flat = self.block[:, place : place + _bytes(column)].view(column.dtype)
        return flat.unflatten(1, column.shape) if column.shape else flat.squeeze(1)

    def cells(self) -> dict[NestedKey, Tensor]:
        """All entries."""
        return {key: self.cell(key) for key in self._columns}


def _itemsize(column: Column) -> int:
    assert column.dtype is not None
    return column.dtype.itemsize


def _bytes(column: Column) -> int:
    return 0 if column.dtype is None else column.shape.numel() * column.dtype.itemsize


def _sum(columns: Mapping[NestedKey, Column]) -> int:
    return sum(map(_bytes, columns.values()))


def _pitch(columns: Mapping[NestedKey, Column]) -> int:
    """Bytes from row to row: a multiple of a cache line if that adds at most 1/8, else of the largest element."""
    size, number = _sum(columns), max(map(_itemsize, columns.values()))
    lines = -(-size // _LINE) * _LINE
    return lines if lines * 8 <= size * 9 else -(-size // number) * number
