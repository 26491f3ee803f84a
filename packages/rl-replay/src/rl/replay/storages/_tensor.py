"""Storages that keep each key in one preallocated tensor, in the memory of the process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, final

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.arguments import foreign_arguments
from rl.core.errors import ArgumentError, BackendError
from rl.core.keys import NestedKey
from rl.replay._kinds import batch_shape
from rl.replay._layout import Cells, Column, Layout, flatten
from rl.replay.storages._memmap import MemmapStorageBase, SharedTensorStorage
from rl.replay.storages._rows import TensorStorageBase, naming
from rl.replay.storages._successors import repeated

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
        columns: Entries of a row, all with a dtype.
        rows: Number of rows.

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


@final
@foreign_arguments()
class LazyTensorStorage(TensorStorageBase):
    """Rows in memory that is allocated by the first batch.

    Args:
        max_size: Capacity in rows; with ``ndim > 1`` in elements.
        device: Device of the rows; batches are moved there, samples are on it. ``"auto"`` for that of the first batch.
        ndim: Number of leading dimensions of a batch that count rows. With 1, a batch ``[B, T]`` yields B rows of T
            steps each; with 2, ``B * T`` elements, which a buffer keeps in the order of steps.
        compact: Whether to store the entries that rows have at the root and, with the same shape and dtype, under
            ``next`` once: those under ``next`` are read from the row of the next step, or from a copy where that step
            is not stored or differs. Samples are the same, bit by bit. Worth it for images.
        allow_missing: Whether to fill entries that a later batch lacks: with NaN if they are floating-point or complex
            numbers, else with 0, False or None. Otherwise the batch is rejected.
        allow_extra: Whether to drop entries that a later batch has and the first one did not have. Otherwise the batch
            is rejected.

    A batch is a TensorDict, a tensor, a tensorclass, or a PyTree (dict, tuple, named tuple, registered class) of
    tensors ``[n, ...]``; samples are what the first batch was. A list is a list of rows, which are stacked.

    The first batch fixes structure, keys, shapes and dtypes; a batch that differs is rejected before anything is
    written.

    Example:
        >>> from tensordict import TensorDict
        >>> storage = LazyTensorStorage(100)
        >>> storage.set(torch.arange(3), TensorDict({"obs": torch.eye(3)}, batch_size=[3]))
        >>> len(storage), storage.get(1)["obs"]
        (3, tensor([0., 1., 0.]))
    """

    _block: Interleaved | None = None

    def __init__(
        self,
        max_size: int,
        *,
        device: torch.device | str | None = "cpu",
        ndim: int = 1,
        compact: bool = False,
        allow_missing: bool = False,
        allow_extra: bool = False,
    ) -> None:
        self._auto: Final = device == "auto"
        device = "cpu" if self._auto else device  # until the first batch
        super().__init__(max_size, device=device, ndim=ndim, allow_missing=allow_missing, allow_extra=allow_extra)
        self.compact = compact

    def share(self) -> MemmapStorageBase:
        """Create a storage of the same arguments whose rows several processes use.

        Raises:
            ArgumentError: If it has rows already.
            BackendError: If it is not on the CPU.
        """
        if not self.on_cpu:
            raise BackendError(
                f"LazyTensorStorage: rows on {self.device} cannot be shared; leave device out, and move samples with a"
                " transform"
            )
        if self.compact:
            raise ArgumentError("LazyTensorStorage: compact rows belong to one process; leave compact or shared out")
        if self._len:
            raise ArgumentError("LazyTensorStorage has rows already; create the shared buffer before the first batch")
        return SharedTensorStorage(
            self.max_size, ndim=self.ndim, allow_missing=self.allow_missing, allow_extra=self.allow_extra
        )

    def _allocate(self, layout: Layout) -> None:
        before, self._block = self._block, self._new_block(layout)
        try:
            super()._allocate(layout)
        except BaseException:
            self._block = before  # of the rows that are still stored
            raise

    def _choose_device(self, data: Any, cells: Cells) -> None:
        if self._auto:
            self._set_device(_device(data, cells) or torch.device("cpu"))

    def _new_block(self, layout: Layout) -> Interleaved | None:
        """Memory of the packed entries; None if none is packed."""
        device = torch.get_default_device() if self.device is None else self.device
        once = repeated(layout.columns) if self.compact else {}
        columns = {key: col for key, col in layout.columns.items() if key not in once and key not in once.values()}
        near = Interleaved.worth(columns, self.max_size) if device.type == "cpu" else {}
        try:
            return Interleaved(near, self.max_size) if near else None
        except RuntimeError:
            # Unwritten rows take no memory, so separate tensors may exceed it; one block may not.
            return None

    def _new_tensor(self, key: NestedKey, column: Column) -> Tensor:
        block = self._block
        return block.cell(key) if block is not None and key in block else super()._new_tensor(key, column)

    def _forget(self) -> None:
        super()._forget()
        self._block = None

    def __getstate__(self) -> dict[str, Any]:
        # Views are pickled as their block: each view would be pickled with all of it.
        state, block = super().__getstate__(), self._block
        if block is not None:
            state["_cells"] = {key: None if key in block else cell for key, cell in self._cells.items()}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        block: Interleaved | None = state.get("_block")
        if block is not None:
            state = {**state, "_cells": {**state["_cells"], **block.cells()}}
        super().__setstate__(state)


@final
@foreign_arguments()
class TensorStorage(TensorStorageBase):
    """Rows in existing tensors, such as a dataset; the tensors are not copied.

    Args:
        data: TensorDict, a tensor, a tensorclass or a PyTree of tensors, ``[max_size, ...]``; every row counts as
            written.
        ndim: Number of leading dimensions that count rows; see `LazyTensorStorage`.

    Example:
        >>> storage = TensorStorage(torch.arange(10))
        >>> storage.get(torch.tensor([7, 2]))
        tensor([7, 2])
    """

    def __init__(self, data: Any, *, ndim: int = 1) -> None:
        with naming(self):
            shape = batch_shape(data, ndim)
        cells = flatten(data, ndim)
        layout = Layout.of(data, ndim)
        count = torch.Size(shape[:ndim]).numel()
        super().__init__(count, device=_device(data, cells), ndim=ndim)
        self._check_first(layout)
        self._adopt(layout, cells)
        self._len = count
        self.lead: Final = torch.Size(shape[:ndim])
        """The dimensions that count rows."""


def _device(data: Any, cells: Cells) -> torch.device | None:
    """Return the device of a batch; None if its tensors are on several."""
    if isinstance(data, (TensorDictBase, Tensor)):
        return data.device
    devices = {cell.device for cell in cells.values() if isinstance(cell, Tensor)}
    return devices.pop() if len(devices) == 1 else None
