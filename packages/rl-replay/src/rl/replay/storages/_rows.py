"""Base of the storages that keep each key in one preallocated tensor."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, Final, NoReturn, Self, TypeGuard

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torch.utils._pytree import tree_map

from rl.core.arguments import as_integer
from rl.core.errors import CheckpointError, ContractError, ShapeError, SpecError
from rl.core.interfaces import RowGather
from rl.core.keys import NestedKey, key_str
from rl.core.state import pack, unpack
from rl.replay._arguments import Index, as_device, row_numbers, to_device
from rl.replay._kinds import NodeTypes, batch_shape, one_row, stacked
from rl.replay._layout import Cells, Column, Layout, flatten, leading
from rl.replay._state import Fields, Stateful, load_cells
from rl.replay.storages._successors import NextObsStore, flat_rows, repeated, row_gather

_INSTEAD = {"uint16": torch.int32, "uint32": torch.int64, "uint64": torch.int64}


class TensorStorageBase(Stateful):
    """Base of the storages that keep each key in one tensor ``[max_size, ...]``.

    Args:
        max_size: Capacity in rows; with ``ndim > 1`` in elements.
        device: Device of the tensors; batches are moved there.
        ndim: Number of leading dimensions of a batch that count rows. With 1, a batch ``[B, T]`` yields B rows of T
            steps; with 2 it yields ``B * T`` elements, which a buffer keeps in the order of steps.
        allow_missing: Whether to fill entries that a later batch lacks, see `Layout.fit`.
        allow_extra: Whether to drop entries that the first batch did not have.

    A batch is a TensorDict, a tensor, a tensorclass, or a PyTree (dict, tuple, named tuple, registered class) of
    tensors ``[n, ...]``; rows come back as what the first batch was. A list is a list of rows, which are stacked.
    """

    def __init__(
        self,
        max_size: int,
        *,
        device: torch.device | str | None = "cpu",
        ndim: int = 1,
        allow_missing: bool = False,
        allow_extra: bool = False,
    ) -> None:
        self.max_size: Final = as_integer(max_size, type(self).__name__, "max_size", 1)
        self.ndim: Final = as_integer(ndim, type(self).__name__, "ndim", 1)
        self._set_device(as_device(type(self).__name__, device))
        self.allow_missing: Final = allow_missing
        self.allow_extra: Final = allow_extra
        self._layout: Layout | None = None
        self._cells: Cells = {}
        self._tensors: list[tuple[NestedKey, Tensor]] = []
        self._lists: list[tuple[NestedKey, list[Any]]] = []
        self._keys: list[NestedKey] = []  # of the tensors
        self._rows: RowGather = row_gather([])  # of the tensors
        self._next: NextObsStore | None = None  # of the entries under ``next``, if these are not stored
        self._len = 0
        self._revision = 0
        self._writable = False

    compact = False

    def _set_device(self, device: torch.device | None) -> None:
        self.device = device
        self.on_cpu = device is None or device.type == "cpu"

    def __len__(self) -> int:
        return self._len

    def __repr__(self) -> str:
        rows = f"{self._len} of {self.max_size} rows"
        return f"{type(self).__name__}({rows}, device={self.device}, {self._layout or 'no layout yet'})"

    @property
    def layout(self) -> Layout | None:
        """Keys, shapes and dtypes of a row; None before the first batch."""
        return self._layout

    @property
    def revision(self) -> int:
        """Number of writes and removals; a slice sampler detects changes of its rows by it."""
        return self._revision

    def count(self, data: Any) -> int:
        """Return the number of rows in `data`; with ``ndim > 1`` of elements.

        Raises:
            ContractError: If `data` holds something else than tensors.
            ShapeError: If it has fewer than `ndim` batch dimensions.
        """
        return self._lead(data).numel()

    def __getitem__(self, index: Index) -> Any:
        """Return the rows under `index`; see `get`."""
        return self.get(index)

    def __iter__(self) -> Iterator[Any]:
        """All rows, one by one."""
        return (self.get(row) for row in range(self._len))

    def get(self, index: Index) -> Any:
        """Return the rows under `index`, ``[n, ...]``; one row without that dimension for an int. A copy.

        Lists, ranges and arrays count as tensors of indices.

        Raises:
            IndexError: If an index is outside of the stored rows; one on an accelerator is checked by its device.
        """
        layout = self._layout
        if layout is None:
            raise ContractError(f"{type(self).__name__} is empty: write rows with `extend` before reading")
        if isinstance(index, Tensor) and index.dtype is not torch.bool:
            return self._gather(layout, index)
        if not isinstance(index, int):
            return self._gather(layout, row_numbers(type(self).__name__, index, self._len))
        row = self._row(index)
        cells = {key: cell[row] for key, cell in self._cells.items()}
        if self._next is not None:
            found = self._next.read(torch.tensor([row], device=self.device), self._len)
            cells.update({key: cell[0] for key, cell in found.items()})
        return layout.build(
            {key: cell.clone() if isinstance(cell, Tensor) else cell for key, cell in cells.items()},
            (),
            self.device,
        )

    def columns(self, keys: Iterable[NestedKey], index: Tensor | None = None) -> dict[NestedKey, Tensor]:
        """Return entries of the rows under `index` ``[*n]``, or of all rows; those that rows lack are omitted.

        Raises:
            IndexError: If an index is outside of the stored rows.
        """
        found: dict[NestedKey, Tensor] = {}
        if index is not None and not self.on_cpu:
            index = self._to_device(index)
        for key in keys:
            if self._next is not None and key in self._next:
                rows = torch.arange(self._len, device=self.device) if index is None else index.reshape(-1)
                if self.on_cpu and len(rows):
                    self._check_bounds(rows)
                cell = self._next.read(rows, self._len, [key])[key]
                found[key] = cell if index is None else cell.view(*index.shape, *cell.shape[1:])
                continue
            cell = self._cells.get(key)
            if isinstance(cell, Tensor):
                rows = cell[: self._len]
                if index is None:
                    found[key] = rows.clone(memory_format=torch.contiguous_format)
                else:
                    chosen = flat_rows(rows).index_select(0, index.reshape(-1))
                    found[key] = chosen.view(*index.shape, *rows.shape[1:])
        return found

    def get_runs(self, index: Tensor, begin: Tensor) -> Any:
        """Rows under `index` ``[*n]``, which are runs of equally many adjacent rows; faster than `get`.

        Args:
            index: Indices of stored rows, int64.
            begin: First row of each run, int64.
        """
        layout = self._layout
        if layout is None or self._lists or not self.on_cpu:
            return self.get(index)
        rows = self._rows.runs(self._len, begin, index.numel() // len(begin))
        cells: Cells = dict(zip(self._keys, rows, strict=True))
        if self._next is not None:
            cells.update(self._next.read(index.reshape(-1), self._len))
        return self._build(layout, cells, index.shape)

    def by_batch(self, index: Tensor, data: Any) -> Tensor:
        """Rows `index` ``[n]`` that a batch takes step by step, in the order of the flattened batch.

        Example:
            >>> from rl.replay.storages import LazyTensorStorage
            >>> LazyTensorStorage(12, ndim=2).by_batch(torch.arange(6), torch.zeros(2, 3))
            tensor([0, 2, 4, 1, 3, 5])
        """
        steps = self._lead(data)[-1]
        return index.view(steps, -1).t().reshape(-1) if self.ndim > 1 and steps > 1 else index

    def as_batch(self, rows: Any, count: int) -> Any:
        """Rows ``[count, ...]`` as a batch whose first `ndim` dimensions count rows, ``[1, count, ...]`` if it is 2.

        Raises:
            ShapeError: If there is another number of rows, or more dimensions than `get` returns.

        Example:
            >>> from rl.replay.storages import LazyTensorStorage
            >>> LazyTensorStorage(12, ndim=2).as_batch(torch.zeros(5), 5).shape
            torch.Size([1, 5])
        """
        rows = self._batch(rows)
        root = None if self._layout is None else self._layout.root
        shape = list(rows.shape) if isinstance(rows, (TensorDictBase, Tensor)) else [count]
        expected = [count, *(shape[1:] if root is None or root.kind is not None else root.tail)]
        if shape != expected:
            raise ShapeError(
                f"{type(self).__name__}: expected {count} rows {expected}, as they are read, got {shape}; nothing was"
                " written. Flatten the environments and steps of a batch"
            )
        for _ in range(self.ndim - 1):
            rows = tree_map(lambda part: part.unsqueeze(0), rows, is_leaf=lambda part: hasattr(part, "unsqueeze"))
        return rows

    def set(self, index: Index, data: Any, *, by_step: bool = False) -> None:
        """Write the rows of `data` under `index`. Everything is checked before anything is written.

        Rows may be appended only without leaving a gap. A batch ``[envs, steps]``, with ``ndim=2``, is flattened: all
        steps of one environment, then those of the next. With `by_step`, `index` has the rows of the first step of all
        environments, then those of the next step.

        Raises:
            ContractError: If a key is missing or new, or the batch is of another structure than the first.
            SpecError: If a dtype differs from the first batch, or an entry is sparse, on the meta device, or of a dtype
                that torch cannot write.
            ShapeError: If a shape differs, or there are not as many rows as indices.
            IndexError: If an index is negative, beyond the capacity or would leave a gap.
        """
        if isinstance(index, int):
            self.set(torch.tensor([index], device="cpu"), one_row(data))
            return
        if self._is_run(index):
            self._set_run(index, data, by_step=by_step)
            return
        if not isinstance(index, Tensor) or index.dtype is torch.bool:
            index = row_numbers(type(self).__name__, index, self.max_size)
        cells, count, layout = self._checked(data)
        if index.numel() != count:
            raise ShapeError(f"{type(self).__name__}: {index.numel()} indices for {count} rows")
        length = length_after_write(type(self).__name__, index, self._len, self.max_size)
        if self._layout is None:
            with torch.inference_mode(mode=False):  # else nothing could be written outside of that mode
                self._allocate(layout)
        index = self.by_batch(index, data) if by_step else index.reshape(-1)
        if not self.on_cpu:
            index, cells = to_device(index, self.device), self._moved(cells)
        if self._next is not None:
            index, cells = _last_of_each(index, cells)
            self._next.write(index.cpu().numpy(), cells, self._len)
        for key, tensor in self._tensors:
            tensor.index_copy_(0, index, cells[key])
        self._set_objects(index, cells)
        self._len = length
        self._revision += 1

    def _moved(self, cells: Cells) -> Cells:
        """Entries on the device of the storage."""
        return {key: to_device(cell, self.device) if isinstance(cell, Tensor) else cell for key, cell in cells.items()}

    def _set_objects(self, index: Tensor, cells: Cells) -> None:
        for key, values in self._lists:
            for row, value in zip(index.tolist(), cells[key], strict=True):
                values[row] = value

    def _is_run(self, index: Any) -> TypeGuard[slice]:
        """Return whether `index` is a slice of adjacent rows that leaves no gap, and all entries are tensors."""
        if not isinstance(index, slice) or index.step is not None or self._layout is None or self._lists:
            return False
        start, stop, _ = index.indices(self.max_size)
        return (start, stop) == (index.start, index.stop) and start <= self._len

    def _set_run(self, rows: slice, data: Any, *, by_step: bool) -> None:
        """Write adjacent rows, which leave no gap; long rows are copied much faster than by index."""
        steps, wanted = self._lead(data)[-1] if by_step else 1, rows.stop - rows.start
        transposed = steps not in (1, wanted)
        cells, count, _ = self._checked(data, merge=not transposed or self._next is not None)
        if wanted != count:
            raise ShapeError(f"{type(self).__name__}: {wanted} indices for {count} rows")
        if self._next is not None:
            index = torch.arange(rows.start, rows.stop, device="cpu")
            index = self.by_batch(index, data) if by_step else index
            cells = cells if self.on_cpu else self._moved(cells)
            self._next.write(index.numpy(), cells, self._len)
        for key, tensor in self._tensors:
            if transposed:
                _copy_by_step(tensor, rows.start, cells[key], count // steps, steps)
            else:
                tensor[rows] = cells[key]
        self._len = max(self._len, rows.stop)
        self._revision += 1

    def empty(self) -> None:
        """Remove all rows; layout and memory stay."""
        self._len = 0
        self._revision += 1
        if self._next is not None:
            self._next.clear()
        for _, values in self._lists:
            values[:] = [None] * self.max_size

    def state_dict(self) -> dict[str, Any]:
        """Copy of layout and rows.

        Raises:
            CheckpointError: If non-tensor data holds more than numbers, strings, None and containers of them.
        """
        return self.view_state(copy=True)

    def view_state(self, *, copy: bool = False) -> dict[str, Any]:
        """As `state_dict`, but the tensors are views of the storage unless `copy`."""
        cells: list[Any] = []
        for key, cell in self._cells.items():
            part = cell[: self._len]
            if isinstance(part, Tensor):
                part = part.clone() if copy else part
            else:
                part = pack(part, f"{type(self).__name__}: the non-tensor data under {key!r}")
            cells.append([key, part])
        layout = None if self._layout is None else self._layout.state()
        state = {"max_size": self.max_size, "ndim": self.ndim, "len": self._len, "layout": layout, "cells": cells}
        if self.compact:
            state["next"] = None if self._next is None else self._next.state(self._len)
        return state

    def _load(self, state: Any, rows: int | None, max_size: int | None) -> None:  # noqa: ARG002
        owner = type(self).__name__
        names = ("max_size", "ndim", "len", "layout", "cells")
        fields = Fields(owner, state, (*names, "next") if self.compact else names)
        fields.match(max_size=self.max_size, ndim=self.ndim)
        length, pairs = fields.integer("len", high=self.max_size), fields.items("cells")
        self._len = length
        if fields["layout"] is None:
            if length or pairs or (self.compact and fields["next"] is not None):
                fields.fail(f"it has {length} rows and no layout")
            self._layout, self._cells, self._next = None, {}, None
            return
        layout = Layout.from_state(fields["layout"])
        self._check_known(layout)
        pairs = [[key, part if isinstance(part, Tensor) else unpack(part, owner)] for key, part in pairs]
        once = repeated(layout.columns) if self.compact else {}
        stored = {key: column for key, column in layout.columns.items() if key not in once.values()}
        self._layout, self._cells = layout, load_cells(fields, stored, pairs, length, meta=self._is_meta)
        if self.compact:
            vars(self)["_next"] = NextObsStore.check_state(owner, fields["next"], once, layout.columns, length)

    def adopt(self, twin: Self) -> None:
        """Copy the rows of `twin` into the memory of this storage, which is allocated if the layout is another one."""
        layout = twin._layout
        if layout is None:
            self._forget()
        else:
            if self._layout is None or self._layout.state() != layout.state():
                with torch.inference_mode(mode=False):  # as in `set`
                    self._allocate(layout)
            for key, part in twin._cells.items():
                own = self._cells[key]
                if not (isinstance(own, Tensor) and own.data_ptr() == part.data_ptr()):  # else they are there already
                    own[: twin._len] = part
            if self._next is not None:
                parts: Any = twin._next  # of a twin, what `NextObsStore.check_state` returned
                self._next.load(*parts)
            self._len = twin._len
        self._revision += 1

    @property
    def _is_meta(self) -> bool:
        return self.device is not None and self.device.type == "meta"

    def _new_tensor(self, key: NestedKey, column: Column) -> Tensor:  # noqa: ARG002  file-backed storages name files by it
        """Memory for one column, ``[max_size, ...]``."""
        return torch.empty((self.max_size, *column.shape), dtype=column.dtype, device=self.device)

    def _forget(self) -> None:
        """Release layout and memory."""
        self._layout, self._len, self._next = None, 0, None
        self._hold({})

    def _allocate(self, layout: Layout) -> None:
        cells: Cells = {}
        once = repeated(layout.columns) if self.compact else {}
        for key, column in layout.columns.items():
            if key in once.values():
                continue
            cells[key] = [None] * self.max_size if column.dtype is None else self._new_tensor(key, column)
        self._adopt(layout, cells)
        if self.compact:
            self._next = NextObsStore(once, {key: cells[key] for key in once}, self.max_size)

    def _adopt(self, layout: Layout, cells: Cells) -> None:
        self._hold(cells)
        self._layout = layout

    def _hold(self, cells: Cells) -> None:
        rows = row_gather([cell for cell in cells.values() if isinstance(cell, Tensor)])  # first: a plugin may raise
        self._cells, self._rows = cells, rows
        self._writable = False  # checked by the next write
        self._tensors = [(key, cell) for key, cell in cells.items() if isinstance(cell, Tensor)]
        self._lists = [(key, cell) for key, cell in cells.items() if not isinstance(cell, Tensor)]
        self._keys = [key for key, _ in self._tensors]

    def __getstate__(self) -> dict[str, Any]:
        # Rebuilt by `__setstate__`: another back end may copy rows there.
        rebuilt = ("_rows", "_tensors", "_lists", "_keys")
        return {name: value for name, value in self.__dict__.items() if name not in rebuilt}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._hold(self._cells)

    def _checked(self, data: Any, *, merge: bool = True) -> tuple[Cells, int, Layout]:
        """Return validated entries of a batch, number of rows, and layout.

        Entries are ``[n, ...]``; without `merge` they may have the dimensions that count rows apart.
        """
        layout = self._layout
        if layout is not None and self._writable and type(data) is TensorDict:
            lead = data.batch_size[: self.ndim]
            count = lead.numel()
            found = layout.match(data, lead) if count and len(lead) == self.ndim else None
            if found is not None:
                if merge and self.ndim > 1:
                    found = {key: cell.flatten(0, self.ndim - 1) for key, cell in found.items()}
                return found, count, layout
        owner = type(self).__name__
        data = self._batch(data)
        shape, kinds = self._shape(data), NodeTypes()
        cells = flatten(data, self.ndim, kinds)
        if layout is None:
            _check_nested(owner, cells)
            layout = Layout.of(data, self.ndim)
            self._check_first(layout)
            self._choose_device(data, cells)
        elif self.allow_missing or self.allow_extra:
            rows = torch.Size(shape[: self.ndim]).numel()
            layout.fit(cells, kinds, rows, missing=self.allow_missing, extra=self.allow_extra)
        count = layout.check(cells, owner, kinds)
        for key, cell in cells.items():
            if isinstance(cell, Tensor) and (cell.layout is not torch.strided or (cell.is_meta and not self._is_meta)):
                _raise_without_values(owner, key, cell)
        if count == 0:
            raise ShapeError(f"{owner}: a batch without rows, batch size {list(shape)}")
        if not self._writable:
            _check_writable(owner, layout.columns, self.device)
            self._writable = True
        return cells, count, layout

    def _choose_device(self, data: Any, cells: Cells) -> None:
        """Choose the device for the first batch."""

    def _batch(self, data: Any) -> Any:
        """Return `data`, a list of rows as a batch."""
        if not isinstance(data, list):
            return data
        with naming(self):
            return stacked(data)

    def _lead(self, data: Any) -> torch.Size:
        """Return the dimensions of a batch that count rows."""
        return leading(data.batch_size if type(data) is TensorDict else self._shape(self._batch(data)), self.ndim)

    def _shape(self, data: Any) -> torch.Size:
        if isinstance(data, (TensorDictBase, Tensor)):
            return data.shape
        with naming(self):
            return batch_shape(data, self.ndim)

    def _check_known(self, layout: Layout) -> None:
        """Check that the classes of a layout that is read are known.

        Raises:
            CheckpointError: If there are any, and the rows that are stored are not of the same layout.
        """
        if layout.classes and (self._layout is None or self._layout.state() != layout.state()):
            raise CheckpointError(
                f"{type(self).__name__}: these rows are of the class {layout.classes}, which a state only names."
                " Write one such row into the buffer, with the same shapes and dtypes, and then load it"
            )

    def _check_first(self, layout: Layout) -> None:
        owner = type(self).__name__
        if not layout.columns:
            raise ContractError(f"{owner}: the first batch has no entries; a row needs at least one key")
        if self.compact and not repeated(layout.columns):
            raise ContractError(
                f"{owner}: compact=True stores entries once that rows have at the root and under 'next', and the first"
                f" batch has none (it has: {layout}); leave compact out"
            )

    def _gather(self, layout: Layout, index: Tensor) -> Any:
        flat = index if index.dim() == 1 else index.reshape(-1)
        cells = self._gathered(flat)
        if self._lists:
            if not self._tensors and flat.numel():
                self._check_bounds(flat)
            rows: list[int] = flat.tolist()
            for key, values in self._lists:
                cells[key] = [values[row] for row in rows]
            built = layout.build(cells, flat.shape, self.device)
            return built if flat is index else built.reshape(*index.shape, *built.shape[1:])
        return self._build(layout, cells, index.shape)

    def _build(self, layout: Layout, cells: Cells, shape: torch.Size) -> Any:
        """Rows of tensors ``[n, ...]`` as a batch ``[*shape, ...]``."""
        if len(shape) != 1:
            cells = {key: cell.view(*shape, *cell.shape[1:]) for key, cell in cells.items()}
        return layout.build(cells, shape, self.device)

    def _gathered(self, index: Tensor) -> Cells:
        """Return the tensors' rows under `index` ``[n]``."""
        rows = self._to_device(index) if not self.on_cpu else index.cpu()
        try:
            cells: Cells = dict(zip(self._keys, self._rows.rows(self._len, rows), strict=True))
        except IndexError:
            self._check_bounds(index)
            raise
        if self._next is not None:
            cells.update(self._next.read(index, self._len))
        return cells

    def _to_device(self, index: Tensor) -> Tensor:
        """`index` on the device of the rows; bounds are checked on the CPU only, else the host would wait."""
        if index.is_cpu and index.numel():
            self._check_bounds(index)
        return to_device(index, self.device)

    def _check_bounds(self, index: Tensor) -> None:
        low, high = (int(bound) for bound in index.aminmax())
        if low < 0 or high >= self._len:
            wrong = low if low < 0 else high
            raise IndexError(f"{type(self).__name__}: index {wrong} is outside [0, {self._len})")

    def _row(self, index: int) -> int:
        row = index + self._len if index < 0 else index
        if not 0 <= row < self._len:
            raise IndexError(f"{type(self).__name__}: index {index} is outside [0, {self._len})")
        return row


@contextmanager
def naming(owner: object) -> Generator[None]:
    """Name the storage that rejects a batch."""
    try:
        yield
    except (ContractError, ShapeError) as error:
        raise type(error)(f"{type(owner).__name__}: {error}") from None


def length_after_write(owner: str, index: Tensor, length: int, max_size: int) -> int:
    """Return the number of rows after writing at `index`.

    Raises:
        IndexError: If an index is outside ``[0, max_size)`` or rows between would stay unwritten.
    """
    least, most = index.aminmax()
    low, high = int(least), int(most)
    if low < 0 or high >= max_size:
        raise IndexError(f"{owner}: index {low if low < 0 else high} is outside [0, {max_size})")
    if high < length:
        return length
    # A contiguous run is the common case; anything else is counted.
    if (low > length or high + 1 - low > index.numel()) and int(
        index[index >= length].unique().numel()
    ) != high + 1 - length:
        raise IndexError(f"{owner}: writing at {high} would leave a gap after row {length - 1}")
    return high + 1


def _copy_by_step(tensor: Tensor, start: int, cell: Tensor, envs: int, steps: int) -> None:
    """Copy `cell`, all steps of one environment after those of another, so that environments lie side by side."""
    shape, (row, *inner) = (envs, steps, *tensor.shape[1:]), tensor.stride()
    place = tensor.as_strided(shape, (row, row * envs, *inner), tensor.storage_offset() + start * row)
    place.copy_(cell.reshape_as(place))


def _last_of_each(index: Tensor, cells: Cells) -> tuple[Tensor, Cells]:
    """Rows that are all different: of a repeated index the last row."""
    if len(index) == 1 or bool((index[1:] > index[:-1]).all()):
        return index, cells
    rows, which = index.unique(return_inverse=True)
    if len(rows) == len(index):
        return index, cells
    position = torch.arange(len(index), device=index.device)
    last = torch.zeros_like(rows).scatter_reduce(0, which, position, "amax").sort().values
    numbers: list[int] = last.tolist()
    kept = {k: cell[last] if isinstance(cell, Tensor) else [cell[i] for i in numbers] for k, cell in cells.items()}
    return index[last], kept


def _raise_without_values(owner: str, key: NestedKey, cell: Tensor) -> NoReturn:
    name = key_str(key) if key else "the tensor"
    if cell.is_meta:
        raise SpecError(f"{owner}: {name} is on the meta device and has no values; nothing was written")
    kind = str(cell.layout).removeprefix("torch.")
    raise SpecError(
        f"{owner}: {name} has the layout {kind}, expected a dense tensor; nothing was written. Convert it with"
        " `.to_dense()` before"
    )


def _check_nested(owner: str, cells: Cells) -> None:
    for key, cell in cells.items():
        if isinstance(cell, Tensor) and cell.is_nested:
            raise ShapeError(
                f"{owner}: {key_str(key) if key else 'the tensor'} is a nested tensor, whose rows differ in shape;"
                " nothing was written. Use ListStorage(n, ragged=True), or pad them to one shape"
            )


@cache
def _writes(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether `index_copy_` supports `dtype`, which depends on device and torch version."""
    try:
        row = torch.empty(1, dtype=dtype, device=device)
        row.index_copy_(0, torch.zeros(1, dtype=torch.int64, device=device), row.clone())
    except (RuntimeError, TypeError):
        return False
    return True


def _check_writable(owner: str, columns: Mapping[NestedKey, Column], device: torch.device | None) -> None:
    """Check that `index_copy_` supports the dtype of each column.

    Raises:
        SpecError: Naming the entry and a dtype to convert it to.
    """
    device = torch.get_default_device() if device is None else device
    for key, column in columns.items():
        dtype = column.dtype
        if dtype is None or _writes(dtype, device):
            continue
        name = str(dtype).removeprefix("torch.")
        instead = _INSTEAD.get(name, torch.float16 if name.startswith("float") else torch.int16)
        raise SpecError(
            f"{owner}: {key_str(key) if key else 'the tensor'} is {name}, which torch cannot write by index on"
            f" {device.type}; nothing was written. Convert it with `.to({instead})` before, or use ListStorage, which"
            " keeps rows as they are"
        )
