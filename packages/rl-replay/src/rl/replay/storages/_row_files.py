"""Files of stored rows: one for each column, the layout, and counters that all processes see."""

from __future__ import annotations

import json
import mmap
import os
import re
import secrets
from itertools import count
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from rl.core.errors import CheckpointError
from rl.core.keys import NestedKey, as_tuple
from rl.replay._layout import Column, Layout, key_of

__all__ = ["RowFiles"]

_LONGEST = 80  # characters of a key in a file's name; file systems take 255 bytes
_LAYOUT, _COUNTERS = "layout.json", "counters"  # the files of columns end with .bin
_FORMAT = "rl-rows/1"


class RowFiles:
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
        folder: of the files.
        owner: name of the storage, for messages.
    """

    def __init__(self, folder: Path, owner: str) -> None:
        self.folder: Final = folder
        self.files: list[Path] = []
        self._owner = owner
        self._counters: memoryview | None = None
        self._names: dict[NestedKey, str] = {}

    @property
    def counters(self) -> memoryview:
        """The counters; their file is made if it is not there."""
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
            CheckpointError: if the file exists.
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

    def open(self, max_size: int, ndim: int, *, whole: bool = True) -> tuple[Layout, dict[NestedKey, Tensor]]:
        """The layout and the columns that are in the folder.

        Args:
            max_size: of the storage.
            ndim: of the storage.
            whole: refuse a layout with columns that are no tensors, which are not in files.

        Raises:
            CheckpointError: if they are damaged, or of a storage with other arguments.
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
        if lacking and whole:
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
        """The files of columns."""
        return [path for path in self.files if path.suffix == ".bin"]

    def _unused(self, key: NestedKey) -> Path:
        """An unused file path for `key`, named after the key as far as file systems allow."""
        name = re.sub(r"[^\w.-]", "_", ".".join(as_tuple(key)), flags=re.ASCII)[:_LONGEST] or "tensor"
        names = (f"{name}.bin" if place == 1 else f"{name}-{place}.bin" for place in count(1))
        return next(path for path in (self.folder / one for one in names) if path not in self.files)


def _mapped(path: Path, shape: torch.Size, dtype: torch.dtype) -> Any:
    if shape.numel() == 0:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return torch.from_file(str(path), shared=True, size=shape.numel(), dtype=dtype).view(shape)
