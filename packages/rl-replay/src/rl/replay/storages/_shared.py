"""Rows of a `LazyTensorStorage` in memory of several processes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import final

from torch import Tensor

from rl.core.errors import BackendError
from rl.core.keys import NestedKey
from rl.replay._layout import Column
from rl.replay.storages._file_rows import FileRows

__all__ = ["SharedTensorStorage"]

_MEMORY = Path("/dev/shm")  # the file system in memory of Linux


@final
class SharedTensorStorage(FileRows):
    """Rows in files of a file system in memory, or in the temporary folder where there is none.

    Args:
        max_size: capacity in rows; with ``ndim > 1`` in elements.
        ndim: see `LazyTensorStorage`.
        allow_missing: see `LazyTensorStorage`.
        allow_extra: see `LazyTensorStorage`.
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
