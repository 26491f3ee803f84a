"""Storage in memory-mapped files, for more rows than fit into memory."""

from __future__ import annotations

import json
import mmap
import os
import re
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Final, final

import torch
from torch import Tensor

from rl.core.arguments import foreign_arguments
from rl.core.errors import BackendError, CheckpointError, ContractError, issue_warning
from rl.core.keys import NestedKey, as_tuple
from rl.replay._arguments import Index, as_device
from rl.replay._layout import Column, Layout, key_of
from rl.replay.storages._rows import TensorStorageBase

_LONGEST = 80  # characters of a key in a file's name; file systems take 255 bytes
_LAYOUT, _COUNTERS = "layout.json", "counters"  # the files of columns end with .bin
_FORMAT = "rl-rows/1"


class MemmapFiles:
    """The files of a storage in a folder.

    ``layout.json`` has keys, shapes, dtypes and the file of each key; ``counters`` are eight int64 in a shared map:

    | | |
    |---|---|
    | 0 | number of rows |
    | 1 | number of writes and removals |
    | 2 | number of layouts so far |
    | 3, 4 | first row, and number of rows, of a write that has begun and not ended; the second is 0 otherwise |
    | 5 | next row of the writer of a shared buffer, -1 for the one after the last |
    | 6 | rows written into a shared buffer |

    Args:
        folder: Folder of the files.
        owner: Name of the storage, for messages.
    """

    def __init__(self, folder: Path, owner: str) -> None:
        self.folder: Final = folder
        self.files: list[Path] = []
        self._owner = owner
        self._counters: memoryview | None = None
        self._names: dict[NestedKey, str] = {}

    @property
    def counters(self) -> memoryview:
        """The counters; their file is created if it is not there."""
        if self._counters is None:
            path = self.folder / _COUNTERS
            self.folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                if os.fstat(handle).st_size < 64:
                    os.pwrite(handle, (-1).to_bytes(8, "little", signed=True), 5 * 8)
                    os.ftruncate(handle, 64)
                self._counters = memoryview(mmap.mmap(handle, 64)).cast("q")
            finally:
                os.close(handle)
            if path not in self.files:
                self.files.append(path)
        return self._counters

    @property
    def lock(self) -> Path:
        """A file whose lock belongs to the rows: that of the counters."""
        assert self.counters  # it exists now
        return self.folder / _COUNTERS

    @property
    def has_layout(self) -> bool:
        """Whether the folder holds the rows of a storage."""
        return (self.folder / _LAYOUT).is_file()

    def new(self, key: NestedKey, column: Column, max_size: int) -> Tensor:
        """Memory for one column, ``[max_size, ...]``, in a file that did not exist.

        Raises:
            CheckpointError: If the file exists.
        """
        assert column.dtype is not None
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._unused(key)
        shape = torch.Size((max_size, *column.shape))
        size = shape.numel() * column.dtype.itemsize
        try:
            with path.open("xb") as file:
                self.files.append(path)  # first, so that it is removed if a later step fails
                file.truncate(size)
        except FileExistsError:
            raise CheckpointError(
                f"{self._owner}: {path} exists already and is not overwritten; choose another scratch_dir, or "
                "remove it if nothing uses it. existsok=True opens the rows of an earlier storage"
            ) from None
        self._names[key] = path.name
        return _mapped(path, shape, column.dtype)

    def record(self, layout: Layout, max_size: int, ndim: int) -> None:
        """Write the layout, once the files of all columns exist."""
        files = [[key, self._names[key]] for key, column in layout.columns.items() if column.dtype is not None]
        state = {"format": _FORMAT, "max_size": max_size, "ndim": ndim, "layout": layout.state(), "files": files}
        path = self.folder / _LAYOUT
        temporary = path.with_suffix(f".{secrets.token_hex(4)}.tmp")
        temporary.write_text(json.dumps(state))
        temporary.replace(path)
        if path not in self.files:
            self.files.append(path)
        self.counters[2] += 1

    def open(self, max_size: int, ndim: int, *, tensors_only: bool = True) -> tuple[Layout, dict[NestedKey, Tensor]]:
        """Return the layout and the columns that are in the folder.

        Args:
            max_size: Capacity of the storage.
            ndim: Argument of the storage.
            tensors_only: Whether to reject a layout with non-tensor columns, which are not in files.

        Raises:
            CheckpointError: If they are damaged, or of a storage with other arguments.
        """
        path = self.folder / _LAYOUT
        try:
            state = json.loads(path.read_text())
            if state["format"] != _FORMAT:
                raise ValueError(f"its format is {state['format']!r}")
            own, found = (max_size, ndim), (state["max_size"], state["ndim"])
            layout = Layout.from_state(state["layout"])
            names = {key_of(key): str(name) for key, name in state["files"]}
            cells = {key: self._column(name, layout.columns[key], found[0]) for key, name in names.items()}
        except (OSError, LookupError, TypeError, ValueError) as error:
            raise CheckpointError(f"{self._owner}: {path} is damaged: {error}. Choose another scratch_dir") from error
        if own != found:
            raise CheckpointError(
                f"{self._owner} has max_size={max_size}, ndim={ndim}, the rows in {self.folder} max_size={found[0]},"
                f" ndim={found[1]}: construct it with the same arguments"
            )
        lacking = layout.columns.keys() - cells.keys()
        if lacking and tensors_only:
            raise CheckpointError(
                f"{self._owner}: {sorted(map(str, lacking))} of the rows in {self.folder} are no tensors, and not in"
                " files; load a checkpoint of the buffer into another folder"
            )
        self._names = names
        self.files[:] = [*(self.folder / name for name in names.values()), path, self.folder / _COUNTERS]
        self._counters = None
        return layout, cells

    def _column(self, name: str, column: Column, max_size: int) -> Tensor:
        path, shape = self.folder / Path(name).name, torch.Size((max_size, *column.shape))
        assert column.dtype is not None
        expected = shape.numel() * column.dtype.itemsize
        if path.stat().st_size != expected:
            raise ValueError(f"{path} has {path.stat().st_size} bytes, expected {expected}")
        return _mapped(path, shape, column.dtype)

    def flush(self) -> None:
        """Write everything to disk."""
        for path in self.files:
            with path.open("rb") as file:
                os.fsync(file.fileno())

    def discard(self, files: list[Path]) -> None:
        """Remove files."""
        for path in files:
            path.unlink(missing_ok=True)
            if path in self.files:
                self.files.remove(path)
            if path.name == _COUNTERS:
                self._counters = None

    def columns(self) -> list[Path]:
        """Return the files of columns."""
        return [path for path in self.files if path.suffix == ".bin"]

    def _unused(self, key: NestedKey) -> Path:
        """Return an unused file path for `key`, named after the key as far as file systems allow."""
        name = re.sub(r"[^\w.-]", "_", ".".join(as_tuple(key)), flags=re.ASCII)[:_LONGEST] or "tensor"
        names = (f"{name}.bin" if place == 1 else f"{name}-{place}.bin" for place in count(1))
        return next(path for path in (self.folder / one for one in names) if path not in self.files)


def _mapped(path: Path, shape: torch.Size, dtype: torch.dtype) -> Any:
    if shape.numel() == 0:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return torch.from_file(str(path), shared=True, size=shape.numel(), dtype=dtype).view(shape)


_MEMORY = Path("/dev/shm")  # the file system in memory of Linux
_LENGTH, _REVISION, _LAYOUTS, _FIRST, _COUNT = range(5)  # of the counters, see `MemmapFiles`


class MemmapStorageBase(TensorStorageBase):
    """Base of the storages whose rows are in files.

    Args:
        max_size: Capacity in rows; with ``ndim > 1`` in elements.
        folder: Folder of the files; a temporary one, which is removed with the storage, if None.
        base: Parent of a temporary folder; that of the system if None.
        ndim: Argument of `TensorStorageBase`.
        cleanup: Whether to remove the files with the storage.
        existsok: Whether to open the rows that are in the folder.
        allow_missing: Argument of `TensorStorageBase`.
        allow_extra: Argument of `TensorStorageBase`.
    """

    def __init__(
        self,
        max_size: int,
        folder: Path | None,
        *,
        ndim: int,
        cleanup: bool,
        base: Path | None = None,
        existsok: bool = False,
        allow_missing: bool = False,
        allow_extra: bool = False,
    ) -> None:
        super().__init__(max_size, device="cpu", ndim=ndim, allow_missing=allow_missing, allow_extra=allow_extra)
        temporary = folder is None
        folder = Path(tempfile.mkdtemp(prefix="rl-replay-", dir=base)) if folder is None else folder
        self.scratch_dir: Final = folder
        self._store = MemmapFiles(folder, type(self).__name__)
        self._cleanup: Final = cleanup
        self._layouts = 0  # of the counters, when the columns were opened
        self._shared = False
        if existsok and self._store.has_layout:
            self._reopen()
        if cleanup:
            weakref.finalize(self, _remove, self._store.files, folder if temporary else None, os.getpid())

    def set(self, index: Index, data: Any, *, by_step: bool = False) -> None:
        """Write the rows of `data` under `index`; see `TensorStorageBase.set`."""
        if self._layout is None:
            super().set(index, data, by_step=by_step)
        else:
            first, count = self._range(index)
            counters = self._store.counters
            counters[_FIRST], counters[_COUNT] = first, count
            try:
                super().set(index, data, by_step=by_step)
            except Exception:  # of a check, before anything is written
                counters[_COUNT] = 0
                raise
        self._store.counters[_COUNT] = 0
        self._publish()

    def _range(self, index: Index) -> tuple[int, int]:
        """First row and number of rows that a write may touch, which continue at row 0."""
        if isinstance(index, int):
            return index, 1
        if isinstance(index, slice) and index.step in (None, 1):
            first, stop, _ = index.indices(self.max_size)
            return first, max(stop - first, 0)
        if isinstance(index, Tensor) and index.numel() and index.dtype is not torch.bool:
            first, last, count = int(index.view(-1)[0]), int(index.view(-1)[-1]), index.numel()
            if last == (first + count - 1) % self.max_size:  # those of a ring
                return first, count
        return 0, self.max_size

    def empty(self) -> None:
        """Remove all rows; layout and memory stay."""
        super().empty()
        self._publish()

    def adopt(self, twin: Any) -> None:
        """Copy the rows of `twin` into the files; see `TensorStorageBase.adopt`."""
        super().adopt(twin)
        if self._layout is not None:
            self._publish()

    def refresh(self) -> None:
        """See what other processes have written; the caller holds their lock.

        Warns if a process ended while it wrote: its rows are replaced by copies of another row.
        """
        counters = self._store.counters
        if counters[_LAYOUTS] != self._layouts:
            if counters[_LAYOUTS] and self._store.has_layout:
                self._reopen()
            else:
                super()._forget()
                self._layouts = counters[_LAYOUTS]
        self._len, self._revision = counters[_LENGTH], counters[_REVISION]
        if counters[_COUNT]:
            self._repair(counters[_FIRST], counters[_COUNT])

    def share(self) -> MemmapStorageBase:
        """Return the storage as several processes use it.

        Raises:
            ContractError: If it has non-tensor data.
        """
        self._check_shareable()
        self._shared = True
        return self

    def cells_in(self, folder: Path) -> dict[NestedKey, Tensor] | None:
        """Return the columns, if their files are in this folder."""
        if folder.resolve() != self.scratch_dir.resolve() or self._layout is None:
            return None
        return dict(self._tensors)

    @property
    def files(self) -> MemmapFiles:
        """The files of the rows."""
        return self._store

    def keeps(self, folder: Path) -> bool:
        """Return whether the rows are in this folder and outlive the storage."""
        same = folder.resolve() == self.scratch_dir.resolve()
        return same and not self._cleanup and self._layout is not None

    def state_in_place(self) -> dict[str, Any]:
        """As `state_dict`, without the columns in the files, which are written to disk."""
        self._store.flush()
        state = self.view_state()
        lists = [[key, part] for key, part in state["cells"] if not isinstance(part, Tensor)]
        return {**state, "cells": lists, "folder": True}

    def _repair(self, first: int, count: int) -> None:
        """Replace rows whose write has not ended by copies of a whole one."""
        torn = (torch.arange(first, first + min(count, self.max_size)) % self.max_size).tolist()
        rows = sorted(row for row in torn if row < self._len)
        whole = (
            next((row for row in range(min(self._len, len(rows) + 1)) if row not in {*rows}), None) if rows else None
        )
        if rows and whole is None:
            self._len = 0
        elif rows:
            index = torch.tensor(rows)
            for _, tensor in self._tensors:
                tensor[index] = tensor[whole].clone()
        self._store.counters[_COUNT] = 0
        self._revision += 1
        self._publish()
        if rows:
            what = f"replaced by copies of row {whole}" if whole is not None else "removed with all others"
            issue_warning(
                f"{type(self).__name__}: a process ended while it wrote rows {rows[0]} to {rows[-1]} in"
                f" {self.scratch_dir}; they were {what}"
            )

    def _check_shareable(self) -> None:
        if self._lists:
            raise ContractError(
                f"{type(self).__name__}: {[key for key, _ in self._lists]} are no tensors and cannot be shared between"
                " processes; leave them out"
            )
        if self._layout is not None and self._layout.classes:
            raise ContractError(
                f"{type(self).__name__}: rows of the class {self._layout.classes} cannot be shared between processes;"
                " use dicts, tuples or TensorDicts"
            )

    def _publish(self) -> None:
        counters = self._store.counters
        counters[_LENGTH], counters[_REVISION] = self._len, self._revision

    def _reopen(self) -> None:
        layout, cells = self._store.open(self.max_size, self.ndim)
        if layout.classes:
            raise CheckpointError(
                f"{type(self).__name__}: the rows in {self.scratch_dir} are of the class {layout.classes}, which"
                " files only name. Load a checkpoint of the buffer into a storage in another folder that has one such"
                " row"
            )
        self._adopt(layout, dict(cells))
        counters = self._store.counters
        self._len, self._revision, self._layouts = counters[_LENGTH], counters[_REVISION], counters[_LAYOUTS]
        if counters[_COUNT] and not self._shared:
            self._repair(counters[_FIRST], counters[_COUNT])

    def _new_tensor(self, key: NestedKey, column: Column) -> Tensor:
        return self._store.new(key, column, self.max_size)

    def _allocate(self, layout: Layout) -> None:
        before = self._store.columns()
        try:
            super()._allocate(layout)
            if self._shared:
                self._check_shareable()
            self._store.record(layout, self.max_size, self.ndim)
        except BaseException:
            self._store.discard([path for path in self._store.columns() if path not in before])
            if self._shared and self._layout is layout:  # of rows that cannot be shared
                super()._forget()
            raise
        self._layouts = self._store.counters[_LAYOUTS]
        self._store.discard(before)

    def _forget(self) -> None:
        super()._forget()
        files = self._store.files
        if self._shared:  # other processes see by the counters that there is no layout
            self._store.counters[_LAYOUTS] += 1
            self._layouts = self._store.counters[_LAYOUTS]
            self._publish()
            files = [path for path in files if path.name != "counters"]
        self._store.discard(list(files))

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        if self._shared:  # rows are mapped again
            state = {**state, "_cells": {}, "_layout": None, "_len": 0, "_layouts": 0}
            state["_store"] = None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self._shared:
            self._store = MemmapFiles(self.scratch_dir, type(self).__name__)


@final
class SharedTensorStorage(MemmapStorageBase):
    """Rows in files of a file system in memory, or in the temporary folder where there is none.

    Args:
        max_size: Capacity in rows; with ``ndim > 1`` in elements.
        ndim: Argument of `LazyTensorStorage`.
        allow_missing: Argument of `LazyTensorStorage`.
        allow_extra: Argument of `LazyTensorStorage`.
    """

    saved_as = "LazyTensorStorage"
    """The class whose checkpoints it writes and reads."""

    def __init__(self, max_size: int, *, ndim: int = 1, allow_missing: bool = False, allow_extra: bool = False) -> None:
        super().__init__(
            max_size,
            None,
            ndim=ndim,
            cleanup=True,
            base=_MEMORY if _MEMORY.is_dir() else None,
            allow_missing=allow_missing,
            allow_extra=allow_extra,
        )
        self._shared = True

    def _new_tensor(self, key: NestedKey, column: Column) -> Tensor:
        assert column.dtype is not None
        size = self.max_size * column.shape.numel() * column.dtype.itemsize
        free = shutil.disk_usage(self.scratch_dir).free  # writing beyond it would end the process
        if size > free:
            raise BackendError(
                f"LazyTensorStorage, shared: {size} bytes for {key!r} exceed the {free} bytes of {_MEMORY}. Choose a"
                " smaller max_size, or LazyMemmapStorage"
            )
        return super()._new_tensor(key, column)


def with_rows(state: Mapping[str, Any], folder: Path, storage: Any) -> dict[str, Any]:
    """Return the state of `MemmapStorageBase.state_in_place` with the rows of the folder that it was written to.

    Args:
        state: State without rows.
        folder: Folder of the rows.
        storage: Storage that will load the state.

    Raises:
        CheckpointError: If the files are damaged.
    """
    own: Any = storage.cells_in(folder) if isinstance(storage, MemmapStorageBase) else None
    if own is None:
        own = MemmapFiles(folder, "LazyMemmapStorage").open(state["max_size"], state["ndim"], tensors_only=False)[1]
    rows = [[key, cell[: state["len"]]] for key, cell in own.items()]
    return {**{name: value for name, value in state.items() if name != "folder"}, "cells": [*rows, *state["cells"]]}


def _remove(files: list[Path], folder: Path | None, process: int) -> None:
    if os.getpid() != process:  # a forked process has the storage, too, and does not own it
        return
    for path in files:
        path.unlink(missing_ok=True)
    if folder is not None:
        with suppress(OSError):  # keeps the folder if it has other files
            folder.rmdir()


@final
@foreign_arguments()
class LazyMemmapStorage(MemmapStorageBase):
    """Rows in memory-mapped files, created by the first batch: one file for each key.

    Args:
        max_size: Capacity in rows; with ``ndim > 1`` in elements.
        scratch_dir: Folder of the files. A temporary folder if None.
        device: CPU; another one is rejected.
        auto_cleanup: Whether to remove the files with the storage; if None, those in a temporary folder only.
        ndim: Number of leading dimensions of a batch that count rows; see `LazyTensorStorage`.
        existsok: Whether to open the rows that an earlier storage of the same arguments left in `scratch_dir`, if there
            are any. Otherwise files of another storage are rejected.
        allow_missing: Whether to fill entries that a later batch lacks; see `LazyTensorStorage`.
        allow_extra: Whether to drop entries that a later batch has besides those of the first; see `LazyTensorStorage`.

    A batch is as in `LazyTensorStorage`. Rows of named tuples, tensorclasses and registered classes cannot be opened
    again.

    The order of rows in a full ring is the writer's state: `ReplayBuffer.dumps` into `scratch_dir` keeps it, without a
    copy of the rows. A row that was being overwritten when a process was killed is replaced by a copy of another row,
    with a warning.

    Raises:
        BackendError: If `device` is not the CPU.
        CheckpointError: with `existsok`, if the files are damaged, of a storage with other arguments or of a class.

    Example:
        >>> from tensordict import TensorDict
        >>> storage = LazyMemmapStorage(1000)
        >>> storage.set(torch.arange(3), TensorDict({"obs": torch.eye(3)}, batch_size=[3]))
        >>> storage.get(1)["obs"]
        tensor([0., 1., 0.])
        >>> again = LazyMemmapStorage(1000, scratch_dir=storage.scratch_dir, existsok=True)
        >>> len(again), again.get(2)["obs"]
        (3, tensor([0., 0., 1.]))
    """

    def __init__(
        self,
        max_size: int,
        *,
        scratch_dir: str | Path | None = None,
        device: torch.device | str = "cpu",
        auto_cleanup: bool | None = None,
        ndim: int = 1,
        existsok: bool = False,
        allow_missing: bool = False,
        allow_extra: bool = False,
    ) -> None:
        place = as_device("LazyMemmapStorage", device)
        if place is None or place.type != "cpu":
            raise BackendError(
                f"LazyMemmapStorage: memory-mapped files are on the CPU, not on {device}; move samples with "
                f"ReplayBuffer(transform=lambda td: td.to('{device}'))"
            )
        super().__init__(
            max_size,
            None if scratch_dir is None else Path(scratch_dir),
            ndim=ndim,
            cleanup=scratch_dir is None if auto_cleanup is None else auto_cleanup,
            existsok=existsok,
            allow_missing=allow_missing,
            allow_extra=allow_extra,
        )
