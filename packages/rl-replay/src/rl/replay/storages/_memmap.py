"""Storage in memory-mapped files, for more rows than fit into memory."""

from __future__ import annotations

import re
import tempfile
import weakref
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final, final

import torch
from torch import Tensor

from rl.core.errors import BackendError, CheckpointError
from rl.core.keys import NestedKey, as_tuple
from rl.replay import _foreign
from rl.replay._layout import Column, Layout
from rl.replay.storages._rows import TensorRows

__all__ = ["LazyMemmapStorage"]

_LONGEST = 80  # characters of a key in a file's name; file systems take 255 bytes


@final
@_foreign.memmap_storage
class LazyMemmapStorage(TensorRows):
    """Rows in memory-mapped files, made by the first batch: one file for each key.

    Args:
        max_size: capacity in rows; with ``ndim > 1`` in elements.
        scratch_dir: folder of the files; it must not hold files of another storage. A temporary folder if None.
        device: the CPU; another one is refused.
        auto_cleanup: remove the files with the storage; if None, those in a temporary folder only.
        ndim: how many leading dimensions of a batch count rows; see `LazyTensorStorage`.

    The files are working memory: they carry no layout. `ReplayBuffer.dumps` makes a checkpoint.

    Example:
        >>> from tensordict import TensorDict
        >>> storage = LazyMemmapStorage(1000)
        >>> storage.set(torch.arange(3), TensorDict({"obs": torch.eye(3)}, batch_size=[3]))
        >>> storage.get(1)["obs"]
        tensor([0., 1., 0.])
    """

    def __init__(
        self,
        max_size: int,
        *,
        scratch_dir: str | Path | None = None,
        device: torch.device | str = "cpu",
        auto_cleanup: bool | None = None,
        ndim: int = 1,
    ) -> None:
        if torch.device(device).type != "cpu":
            raise BackendError(
                f"LazyMemmapStorage: memory-mapped files are on the CPU, not on {device}; move samples with "
                f"ReplayBuffer(transform=lambda td: td.to('{device}'))"
            )
        super().__init__(max_size, device="cpu", ndim=ndim)
        temporary = scratch_dir is None
        self.scratch_dir: Final = Path(tempfile.mkdtemp(prefix="rl-replay-") if scratch_dir is None else scratch_dir)
        self._files: list[Path] = []
        if temporary if auto_cleanup is None else auto_cleanup:
            weakref.finalize(self, _remove, self._files, self.scratch_dir if temporary else None)

    def _new_tensor(self, key: NestedKey, column: Column) -> Tensor:
        if column.dtype is None:  # pragma: no cover  lists are not allocated here
            raise TypeError(key)
        self.scratch_dir.mkdir(parents=True, exist_ok=True)
        path = self._unused(key)
        shape = torch.Size((self.max_size, *column.shape))
        size = shape.numel() * column.dtype.itemsize
        try:
            with path.open("xb") as file:
                self._files.append(path)  # first, so that it is removed if a later step fails
                file.truncate(size)
        except FileExistsError:
            raise CheckpointError(
                f"LazyMemmapStorage: {path} exists already and is not overwritten; choose another scratch_dir, or "
                "remove it if nothing uses it"
            ) from None
        if size == 0:
            return torch.empty(shape, dtype=column.dtype, device="cpu")
        return torch.from_file(str(path), shared=True, size=shape.numel(), dtype=column.dtype).view(shape)

    def _unused(self, key: NestedKey) -> Path:
        """An unused file path for `key`, named after the key as far as file systems allow."""
        name = re.sub(r"[^\w.-]", "_", ".".join(as_tuple(key)), flags=re.ASCII)[:_LONGEST] or "tensor"
        names = (f"{name}.bin" if place == 1 else f"{name}-{place}.bin" for place in count(1))
        return next(path for path in (self.scratch_dir / one for one in names) if path not in self._files)

    def _allocate(self, layout: Layout) -> None:
        before = list(self._files)
        try:
            super()._allocate(layout)
        except BaseException:
            self._discard(self._files[len(before) :])
            raise
        self._discard(before)

    def _forget(self) -> None:
        super()._forget()
        self._discard(list(self._files))

    def _discard(self, files: list[Path]) -> None:
        for path in files:
            path.unlink(missing_ok=True)
            self._files.remove(path)


def _remove(files: list[Path], folder: Path | None) -> None:
    for path in files:
        path.unlink(missing_ok=True)
    if folder is not None:
        with suppress(OSError):  # keeps the folder if it has other files
            folder.rmdir()
