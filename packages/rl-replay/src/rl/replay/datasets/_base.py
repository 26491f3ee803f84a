"""Base class of data sets: rows in memory-mapped files, prepared once."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tensordict import TensorDict, TensorDictBase

from rl.core.errors import ContractError
from rl.core.settings import settings
from rl.replay.buffers._tensordict import TensorDictReplayBuffer
from rl.replay.storages._tensor import TensorStorage
from rl.replay.writers._immutable import ImmutableDatasetWriter

__all__ = ["DatasetBuffer", "default_root"]


def default_root() -> Path:
    """Where data sets are prepared: ``RL_DATASETS``, else ``~/.cache/rl/datasets``."""
    given = settings().datasets
    return Path(given) if given else Path.home() / ".cache" / "rl" / "datasets"


class DatasetBuffer(TensorDictReplayBuffer):
    """A data set as a `TensorDictReplayBuffer` over memory-mapped rows, which cannot be written.

    A subclass reads the source episode by episode. At the first use these are copied into memory-mapped files in a
    folder, so that memory stays small whatever the size of the data set; later uses open that folder. The folder
    appears under its name only when it is complete.

    Rows have ``observation`` (or the keys of a dictionary), ``action``, the same observations under ``next``,
    ``("next", "reward")`` float32 ``[1]``, ``("next", "done")``, ``("next", "terminated")``, ``("next", "truncated")``
    bool ``[1]`` and ``episode`` int64 ``[]``, so that `SliceSampler` samples parts of episodes.

    Args:
        folder: of the prepared rows.
        rows: number of rows of the source.
        episodes: called to read the source; gives TensorDicts ``[T]``.
        options: arguments of `TensorDictReplayBuffer`: `batch_size`, `sampler`, `transform`, ``prefetch`` and others.

    Raises:
        ContractError: if the source has another number of rows than it says, or none.

    Example:
        >>> import tempfile, torch
        >>> def episodes():
        ...     for number in range(2):
        ...         yield TensorDict(x=torch.arange(3), episode=torch.full((3,), number), batch_size=[3])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     len(DatasetBuffer(Path(folder) / "data", 6, episodes, batch_size=2))
        6
    """

    def __init__(
        self, folder: Path, rows: int, episodes: Callable[[], Iterator[TensorDictBase]], **options: Any
    ) -> None:
        if not (folder / "meta.json").is_file():
            _prepare(type(self).__name__, folder, rows, episodes())
        self.folder, self.data = folder, TensorDict.load_memmap(folder)
        super().__init__(storage=TensorStorage(self.data), writer=ImmutableDatasetWriter(), **options)


def _prepare(owner: str, folder: Path, rows: int, episodes: Iterator[TensorDictBase]) -> None:
    """Write all rows into memory-mapped files."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.parent.mkdir(parents=True, exist_ok=True)
    data: TensorDictBase | None = None
    count = 0
    try:
        for episode in episodes:
            if data is None:
                data = episode[0].expand(rows).memmap_like(partial)
            end = count + len(episode)
            if end > rows:
                raise ContractError(f"{owner}: the source states {rows} rows, and has more")
            data[count:end] = episode
            count = end
        if data is None or count < rows:
            raise ContractError(f"{owner}: the source states {rows} rows, and has {count}: it is not complete")
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    partial.rename(folder)
