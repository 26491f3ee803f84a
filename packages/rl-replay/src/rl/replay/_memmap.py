"""Storage in memory-mapped files, for more rows than fit into memory."""

from __future__ import annotations

import tempfile
import weakref
from pathlib import Path
from typing import Final, final

import torch
from torch import Tensor

from rl.core.errors import BackendError, CheckpointError
from rl.core.keys import NestedKey, as_tuple
from rl.replay._layout import Column
from rl.replay._tensor import TensorRows

__all__ = ["LazyMemmapStorage"]


@final
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
        path = self.scratch_dir / (".".join(as_tuple(key)).replace("/", "_") or "tensor")
        path = path.with_name(path.name + ".bin")
        shape = torch.Size((self.max_size, *column.shape))
        size = shape.numel() * torch.empty((), dtype=column.dtype).element_size()
        try:
            with path.open("xb") as file:
                file.truncate(size)
        except FileExistsError:
            raise CheckpointError(
                f"LazyMemmapStorage: {path} exists already and is not overwritten; choose another scratch_dir, or "
                "remove it if nothing uses it"
            ) from None
        self._files.append(path)
        if size == 0:
            return torch.empty(shape, dtype=column.dtype)
        return torch.from_file(str(path), shared=True, size=shape.numel(), dtype=column.dtype).view(shape)


def _remove(files: list[Path], folder: Path | None) -> None:
    for path in files:
        path.unlink(missing_ok=True)
    if folder is not None and folder.is_dir():
        folder.rmdir()
