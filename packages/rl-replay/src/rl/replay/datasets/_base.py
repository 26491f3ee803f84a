"""Base class of data sets: rows in memory-mapped files, prepared once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl.core.errors import ArgumentError, CheckpointError, ContractError, DuplicateComponentError, UnknownComponentError
from rl.core.keys import nearest
from rl.replay.buffers._tensordict import TensorDictReplayBuffer
from rl.replay.datasets._files import RECORD, Download, locked, new_folder, progress_bar, source_of
from rl.replay.storages._tensor import TensorStorage
from rl.replay.writers import ImmutableDatasetWriter

_MASK = ("collector", "mask")
_CHUNK = 4096  # rows that `preprocess` maps at once


class _Record(NamedTuple):
    """What a prepared folder was made of; ``rows`` of its files hold data."""

    rows: int
    source: str
    texts: dict[str, list[str]]


class DatasetBuffer(TensorDictReplayBuffer):
    """A data set as a `TensorDictReplayBuffer` over memory-mapped rows, which cannot be written.

    A subclass reads the source in parts. At the first use these are copied into memory-mapped files in a folder, so
    that memory stays small whatever the size of the data set; later uses open that folder. It appears under its name
    when it is complete, and is prepared again when the source has changed.

    Rows have ``observation`` (or the keys of a dictionary), ``action``, the same observations under ``next``,
    ``("next", "reward")`` float32 ``[1]``, ``("next", "done")``, ``("next", "terminated")``, ``("next", "truncated")``
    bool ``[1]`` and ``episode`` int64 ``[]``, so that `SliceSampler` samples parts of episodes.

    Args:
        folder: Folder of the prepared rows.
        rows: Number of rows of the source, or a function that counts them.
        episodes: Function that reads the source and yields TensorDicts ``[T]`` in order: episodes, or parts of any
            length.
        exact: Whether `rows` is the number of rows, or the largest that it may be.
        source: Text that identifies the content of the source; rows that were prepared from another one are prepared
            again. None opens the prepared rows, if there are any.
        split_trajs: Whether a row of the buffer is a complete trajectory ``[T_max]``, padded with zeros, with
            ``("collector", "mask")`` bool ``[T_max]``, false for padding. These rows are a second copy of the data set
            on disk.
        progress: Whether to show a bar while rows are prepared; on a terminal, if tqdm is installed, when None.
        texts: Lists that `episodes` fills with the texts to which integers of the rows refer; kept as `texts`.
        options: Arguments of `TensorDictReplayBuffer`: `batch_size`, `sampler`, `transform`, ``prefetch`` and others.

    Raises:
        ContractError: If the source has another number of rows than it states, or none.
        MissingExtraError: If `progress` is true and tqdm is not installed.

    Example:
        >>> import tempfile, torch
        >>> def episodes():
        ...     for number in range(2):
        ...         yield TensorDict(x=torch.arange(3), episode=torch.full((3,), number), batch_size=[3])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     len(DatasetBuffer(Path(folder) / "data", 6, episodes, batch_size=2))
        6
    """

    folder: Path
    """Folder of the prepared rows."""
    data: TensorDictBase
    """The rows, ``[n]``; with `split_trajs` ``[trajectories, T_max]``."""
    dataset_id: str
    """Path or name of the data set that a subclass was given."""
    texts: dict[str, list[str]]
    """Texts to which integers of the rows refer, by the name of the entry."""

    def __init__(
        self,
        folder: Path,
        rows: int | Callable[[], int],
        episodes: Callable[[], Iterable[TensorDictBase]],
        *,
        exact: bool = True,
        source: str | None = None,
        split_trajs: bool = False,
        progress: bool | None = None,
        texts: dict[str, list[str]] | None = None,
        **options: Any,
    ) -> None:
        owner = type(self).__name__
        with locked(folder.parent):
            record = _read(folder)
            if record is None or (source is not None and record.source != source):
                count = rows() if callable(rows) else rows
                bar = progress_bar(owner, episodes(), count, show=progress)
                record = _prepare(owner, folder, count, bar, exact=exact, source=source or "", texts=texts)
            data = _open(folder, record)
            if split_trajs:
                folder, data = _split(folder, data, record)
        self.folder, self.data, self.texts = folder, data, record.texts
        super().__init__(storage=TensorStorage(self.data), writer=ImmutableDatasetWriter(), **options)

    def _open(
        self,
        dataset_id: str,
        folder: Path,
        download: Download,
        get: Callable[[Path], Path],
        read: Callable[[Path], dict[str, Any]],
        **options: Any,
    ) -> None:
        """Construct the buffer from a path, a download, or the rows that were prepared of one; see `source_of`.

        `read` returns arguments of `DatasetBuffer` for a path.
        """
        with source_of(type(self).__name__, dataset_id, folder, download, get) as path:
            known: dict[str, Any] = {"rows": 0, "episodes": tuple} if path is None else read(path)
            DatasetBuffer.__init__(self, folder, **known, **options)
        self.dataset_id = dataset_id

    def preprocess(
        self, fn: Callable[[TensorDictBase], TensorDictBase], dest: str | Path, **options: Any
    ) -> DatasetBuffer:
        """Write the result of a function of all rows as another data set.

        Args:
            fn: Function that maps batches ``[n, ...]`` of up to 4,096 consecutive rows to batches; it may leave rows
                out.
            dest: Folder of the new rows; a data set there is replaced.
            options: Arguments of the new `DatasetBuffer`.
        """
        folder, mapped = Path(dest), (fn(self.data[at : at + _CHUNK]) for at in range(0, len(self.data), _CHUNK))
        with locked(folder.parent):
            record = _Record(len(self), "", self.texts)
            _prepare(type(self).__name__, folder, len(self), mapped, exact=False, source="", texts=record.texts)
        return DatasetBuffer(folder, 0, tuple, **options)

    def delete(self) -> None:
        """Remove the prepared files; the buffer can be used until it is closed, and a later one is prepared again."""
        with locked(self.folder.parent):
            shutil.rmtree(self.folder, ignore_errors=True)


def _read(folder: Path) -> _Record | None:
    try:
        return _Record(**json.loads((folder / RECORD).read_text()))
    except (OSError, ValueError, TypeError):  # prepared by an earlier version, or no folder of ours
        return None


def _open(folder: Path, record: _Record) -> TensorDictBase:
    try:
        return TensorDict.load_memmap(folder)[: record.rows]
    except Exception as error:  # files are missing or of another size
        raise CheckpointError(
            f"the prepared rows in {folder} cannot be opened: {error}. Remove the folder; they are then prepared again"
        ) from error


def _prepare(
    owner: str,
    folder: Path,
    rows: int,
    parts: Iterable[TensorDictBase],
    *,
    exact: bool,
    source: str,
    texts: dict[str, list[str]] | None,
) -> _Record:
    """Write all rows into memory-mapped files."""
    data: TensorDictBase | None = None
    count = 0
    with new_folder(folder) as partial:
        for part in parts:
            if not len(part):
                continue
            if data is None:
                data = part[0].expand(rows, *part.shape[1:]).memmap_like(partial)
            end = count + len(part)
            if end > rows:
                raise ContractError(f"{owner}: the source states {rows} rows, and has more")
            data[count:end] = part
            count = end
        if data is None or (exact and count < rows):
            raise ContractError(f"{owner}: the source states {rows} rows, and has {count}: it is not complete")
        record = _Record(count, source, texts or {})
        (partial / RECORD).write_text(json.dumps(record._asdict()))
    return record


def _split(folder: Path, data: TensorDictBase, record: _Record) -> tuple[Path, TensorDictBase]:
    """Return the trajectories of flat rows, padded with zeros, in a folder next to theirs."""
    split = folder.with_name(f"{folder.name}.split")
    source = f"{record.source} {(folder / RECORD).stat().st_mtime_ns}"
    known = _read(split)
    if known is None or known.source != source:
        stops = _stops(data)
        starts = [0, *stops[:-1]]
        longest = max(stop - start for start, stop in zip(starts, stops, strict=True))
        with new_folder(split) as partial:
            row = data[0].clone().set(_MASK, torch.zeros((), dtype=torch.bool))
            padded = row.expand(len(stops), longest).memmap_like(partial)
            for number, (start, stop) in enumerate(zip(starts, stops, strict=True)):
                part = data[start:stop].clone().set(_MASK, torch.ones(stop - start, dtype=torch.bool))
                padded[number, : stop - start] = part
            known = _Record(len(stops), source, record.texts)
            (partial / RECORD).write_text(json.dumps(known._asdict()))
    return split, _open(split, known)


def _stops(data: TensorDictBase) -> list[int]:
    """Return the row after the last one of each trajectory."""
    ends: Tensor = torch.zeros(len(data), dtype=torch.bool)
    ends[-1] = True
    episode: Any = data.get("episode", None)
    if episode is not None:
        ends[:-1] |= episode.diff() != 0
    done: Any = data.get(("next", "done"), None)
    if done is not None:
        ends |= done.reshape(len(data), -1).any(-1)
    return (ends.nonzero().flatten() + 1).tolist()


_SOURCES: dict[str, Callable[..., Any] | str] = {
    "atari-dqn": "rl.replay.datasets._atari:AtariDQNExperienceReplay",
    "d4rl": "rl.replay.datasets._d4rl:D4RLExperienceReplay",
    "gen-dgrl": "rl.replay.datasets._d4rl:GenDGRLExperienceReplay",
    "lerobot": "rl.replay.datasets._lerobot:LeRobotExperienceReplay",
    "minari": "rl.replay.datasets._minari:MinariExperienceReplay",
    "openx": "rl.replay.datasets._open_x:OpenXExperienceReplay",
}


def register_dataset(source: str, make: Callable[..., Any] | str, *, replace: bool = False) -> None:
    """Let ``load_dataset("source:name")`` call ``make(name, **settings)``.

    Args:
        source: Name before the colon of an id.
        make: Function that returns a replay buffer; or ``"module:attribute"``, which is imported at the first use.
        replace: Whether a source of this name may be replaced.

    Raises:
        ArgumentError: If `source` is empty or has a colon, or `make` cannot be called.
        DuplicateComponentError: If there is such a source, and `replace` is false.

    Example:
        >>> register_dataset("doctest", lambda name, **settings: f"the data set {name}")
        >>> load_dataset("doctest:walks")
        'the data set walks'
    """
    if not source or ":" in source:
        raise ArgumentError(f"register_dataset: source is a name without a colon, got {source!r}")
    if not (callable(make) or (isinstance(make, str) and ":" in make)):
        raise ArgumentError(
            f"register_dataset: make is a function of the name, or its 'module:attribute', got {make!r}"
        )
    if source in _SOURCES and not replace:
        raise DuplicateComponentError(
            f"register_dataset: there is a source {source!r} already. Choose another name, or replace=True"
        )
    _SOURCES[source] = make


def load_dataset(name: str, **settings: Any) -> Any:
    """Load a dataset as a replay buffer.

    Args:
        name: ``"source:name"``, such as ``"minari:mujoco/hopper/expert-v0"`` or ``"d4rl:data/hopper_medium-v2.hdf5"``.
            Sources are ``atari-dqn``, ``d4rl``, ``gen-dgrl``, ``lerobot``, ``minari``, ``openx`` and those of
            `register_dataset`.
        settings: Arguments of the class of the source: ``batch_size``, ``root``, ``download``, ``split_trajs`` and
            others.

    Raises:
        UnknownComponentError: If there is no such source.
    """
    source, colon, rest = name.partition(":")
    if not colon or source not in _SOURCES:
        close = nearest(source, _SOURCES)
        hint = f"; did you mean {close}:{rest or source}?" if close is not None else ""
        raise UnknownComponentError(
            f"load_dataset: there is no source of {name!r}{hint}. Write SOURCE:NAME; sources are"
            f" {', '.join(sorted(_SOURCES))}"
        )
    make = _SOURCES[source]
    if isinstance(make, str):
        module, _, attribute = make.partition(":")
        make = getattr(import_module(module), attribute)
    return make(rest, **settings)
