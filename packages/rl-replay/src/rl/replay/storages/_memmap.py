"""Storage in memory-mapped files, for more rows than fit into memory."""

from __future__ import annotations

from pathlib import Path
from typing import final

import torch

from rl.core.errors import BackendError
from rl.replay import _foreign
from rl.replay._arguments import as_device
from rl.replay.storages._file_rows import FileRows

__all__ = ["LazyMemmapStorage"]


@final
@_foreign.memmap_storage
class LazyMemmapStorage(FileRows):
    """Rows in memory-mapped files, made by the first batch: one file for each key.

    Args:
        max_size: capacity in rows; with ``ndim > 1`` in elements.
        scratch_dir: folder of the files. A temporary folder if None.
        device: the CPU; another one is refused.
        auto_cleanup: remove the files with the storage; if None, those in a temporary folder only.
        ndim: how many leading dimensions of a batch count rows; see `LazyTensorStorage`.
        existsok: open the rows that an earlier storage of the same arguments left in `scratch_dir`, if there are any.
            Otherwise files of another storage are refused.
        allow_missing: fill entries that a later batch lacks; see `LazyTensorStorage`.
        allow_extra: drop entries that a later batch has besides those of the first; see `LazyTensorStorage`.

    A batch is as in `LazyTensorStorage`. Rows of named tuples, tensorclasses and registered classes cannot be opened
    again.

    The order of rows in a full ring is the writer's state: `ReplayBuffer.dumps` into `scratch_dir` keeps it, without a
    copy of the rows. A row that was being overwritten when a process was killed is replaced by a copy of another row,
    with a warning.

    Raises:
        BackendError: if `device` is not the CPU.
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
