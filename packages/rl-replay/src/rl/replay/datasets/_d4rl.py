"""Data sets in the HDF5 files of D4RL."""

from __future__ import annotations

import io
import lzma
import math
import pickle
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, final

import numpy as np
import torch
from tensordict import TensorDict

from rl.core.arguments import foreign_arguments
from rl.core.errors import ContractError, MissingExtraError, RLError
from rl.replay.datasets._base import DatasetBuffer
from rl.replay.datasets._files import Download, fetch, fingerprint, folder_of, open_hdf5, reading, source_of

_OWNER = "D4RLExperienceReplay"
_SITE = "http://rail.eecs.berkeley.edu/datasets/offline_rl/"
_MUJOCO = ("halfcheetah", "hopper", "walker2d", "ant")
_QUALITY = ("random", "medium", "expert", "medium-replay", "full-replay", "medium-expert")
_HANDS = ("pen", "hammer", "relocate", "door")
_NEEDED = ("observations", "actions", "rewards", "terminals")
_CHUNK = 1 << 22  # bytes of observations that are read at once


@final
@foreign_arguments()
class D4RLExperienceReplay(DatasetBuffer):
    """A data set in a HDF5 file of D4RL as a replay buffer; see `DatasetBuffer` for its rows.

    ``terminals`` become ``("next", "terminated")``, ``timeouts`` ``("next", "truncated")``; arrays under ``infos`` are
    entries under ``"info"``. A file without ``next_observations`` does not tell what follows the last step of an
    episode: a step that timed out is left out and the one before it is truncated, as D4RL's own function for
    Q-learning does; after a terminal step, the next observation is zero.

    Args:
        dataset_id: Path of a file, or a name such as ``"hopper-medium-v2"``, which is downloaded.
        batch_size: Number of rows of a sample.
        max_episode_steps: Length of episodes of a file without ``timeouts``, whose limit D4RL takes from the
            environment; 0 if only terminal steps end episodes.
        root: Folder in which rows are prepared; ``RL_DATASETS`` or ``~/.cache/rl/datasets`` if None.
        download: Whether a name is downloaded if its rows are not prepared; ``"force"`` downloads again.
        settings: Further arguments of `DatasetBuffer`: ``split_trajs``, ``progress``, ``sampler`` and others.

    Raises:
        MissingExtraError: If h5py is not installed.
        RLError: If there is no such file, it is damaged or of another layout, or refers to other files (external links,
            external storage, virtual datasets).
        ContractError: If it has no rows.
    """

    def __init__(
        self,
        dataset_id: str,
        batch_size: int | None = None,
        *,
        max_episode_steps: int | None = None,
        root: str | Path | None = None,
        download: Download = False,
        **settings: Any,
    ) -> None:
        dataset_id = str(dataset_id)
        folder, progress = folder_of(root, "d4rl", dataset_id), settings.get("progress")

        def get(into: Path) -> Path:
            return fetch(_OWNER, _address(dataset_id), into / "data.hdf5", progress=progress)

        with source_of(_OWNER, dataset_id, folder, download, get) as path:
            if path is None:
                super().__init__(folder, 0, tuple, batch_size=batch_size, **settings)
            else:
                h5py = _h5py()
                source = fingerprint([path], max_episode_steps)
                with open_hdf5(_OWNER, h5py, path) as file:
                    steps = _Steps(file, path, h5py, max_episode_steps)
                    super().__init__(
                        folder,
                        steps.count,
                        lambda: _rows(steps, path),
                        source=source,
                        batch_size=batch_size,
                        **settings,
                    )
        self.dataset_id = dataset_id


def _h5py() -> Any:
    try:
        import h5py
    except ImportError as error:
        raise MissingExtraError(
            "D4RLExperienceReplay needs h5py, which is not installed: pip install 'rl-replay[d4rl]'"
        ) from error
    return h5py


class _Steps:
    """The arrays of a file, and which of its steps are transitions."""

    def __init__(self, file: Any, path: Path, h5py: Any, limit: int | None) -> None:
        names = _names(file, path)
        missing = [name for name in _NEEDED if name not in names]
        if missing:
            raise RLError(
                f"{_OWNER}: {path} has no {', '.join(missing)} (it has {', '.join(names) or 'nothing'});"
                " it is no file of D4RL"
            )
        self.arrays = {name: _array(file, path, h5py, name) for name in _NEEDED}
        self.total = len(self.arrays["actions"])
        if "next_observations" in names:
            self.arrays["next_observations"] = _array(file, path, h5py, "next_observations")
        infos = file.get("infos")
        for name in _names(infos, path) if isinstance(infos, h5py.Group) else ():
            array = infos.get(name)  # other entries are no steps
            if isinstance(array, h5py.Dataset) and array.shape and array.shape[0] == self.total:
                self.arrays[f"infos/{name}"] = _array(file, path, h5py, f"infos/{name}")
        lengths = {name: len(array) for name, array in self.arrays.items()}
        if set(lengths.values()) != {self.total}:
            raise RLError(f"{_OWNER}: the arrays of {path} differ in length: {lengths}")
        self.terminated = _flags(self.arrays.pop("terminals"), path, "terminals")
        timeouts = _array(file, path, h5py, "timeouts") if limit is None and "timeouts" in names else None
        self.truncated = _timeouts(timeouts, path, self.terminated, limit) & ~self.terminated
        last = self.terminated | self.truncated
        self.episode = np.concatenate([[0], np.cumsum(last)[:-1]]) if self.total else np.zeros(0, np.int64)
        self.keep = np.ones(self.total, bool)
        if "next_observations" not in self.arrays and self.total:
            cut = self.truncated.copy()
            cut[-1] |= not self.terminated[-1]  # what follows the end of the file is not known, either
            self.keep, before = ~cut, np.roll(cut, -1)
            before[-1] = False
            self.truncated = before & ~last
        self.count = int(self.keep.sum())


def _names(group: Any, path: Path) -> list[str]:
    with reading(_OWNER, path, f"the list of entries in {group.name}", "names of arrays and groups"):
        return [name if isinstance(name, str) else repr(name) for name in group]  # bytes are no UTF-8


def _array(file: Any, path: Path, h5py: Any, name: str) -> Any:
    """Return the array of a name, of which only shape and dtype are read."""
    scalars = name in ("rewards", "terminals", "timeouts")
    expected = f"an array of numbers, {'[steps]' if scalars else '[steps, ...]'}"
    with reading(_OWNER, path, name, expected):
        array = file[name]
        found = f"an array {list(array.shape or ())} of {array.dtype}" if isinstance(array, h5py.Dataset) else "none"
        good = found != "none" and array.shape and array.dtype.kind in "biuf" and array.dtype.itemsize <= 8
        if not good or (scalars and math.prod(array.shape[1:]) != 1):
            raise RLError(f"{_OWNER}: {name} of {path} is not {expected}, got {found}; it is no file of D4RL")
    return array


def _flags(array: Any, path: Path, name: str) -> Any:
    with reading(_OWNER, path, name, "flags, [steps]"):
        return np.asarray(array[:]).astype(bool).reshape(-1)


def _timeouts(array: Any, path: Path, terminated: Any, limit: int | None) -> Any:
    if array is not None:
        timeouts = _flags(array, path, "timeouts")
        if len(timeouts) != len(terminated):
            raise RLError(f"{_OWNER}: {path} has {len(timeouts)} timeouts for {len(terminated)} steps")
        return timeouts
    if limit is None:
        raise RLError(
            f"{_OWNER}: {path} has no timeouts. Pass max_episode_steps, the time limit of the environment,"
            " or 0 if only terminal steps end its episodes"
        )
    timeouts, steps = np.zeros(len(terminated), bool), 0
    for row, over in enumerate(terminated.tolist()) if limit else ():
        steps += 1
        if steps == limit:
            timeouts[row] = True
        if over or steps == limit:
            steps = 0
    return timeouts


def _rows(steps: _Steps, path: Path) -> Iterator[TensorDict]:
    """Yield the transitions, in parts."""
    seen = steps.arrays["observations"]
    size = max(_CHUNK // max(math.prod(seen.shape[1:]) * seen.dtype.itemsize, 1), 1)
    for start in range(0, steps.total, size):
        stop = min(start + size, steps.total)
        read = {name: _values(path, name, array, start, stop) for name, array in steps.arrays.items()}
        if "next_observations" not in read:
            seen = read["observations"]
            more = np.zeros_like(seen[:1])
            if stop < steps.total:
                more = _values(path, "observations", steps.arrays["observations"], stop, stop + 1)
            after = np.concatenate([seen[1:], more])
            after[steps.terminated[start:stop]] = 0
            read["next_observations"] = after
        yield _part(steps, read, slice(start, stop))


def _values(path: Path, name: str, array: Any, start: int, stop: int) -> Any:
    with reading(_OWNER, path, name, f"{len(array)} steps of {array.dtype}"):
        return np.asarray(array[start:stop], array.dtype.newbyteorder("="))  # torch has no others


def _part(steps: _Steps, read: dict[str, Any], at: slice) -> TensorDict:
    keep = steps.keep[at]

    def chosen(array: Any) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array[keep]))

    terminated, truncated = steps.terminated[at], steps.truncated[at]
    rows = TensorDict({}, batch_size=[int(keep.sum())])
    rows["observation"], rows["action"] = chosen(read["observations"]), chosen(read["actions"])
    rows["next", "observation"] = chosen(read["next_observations"])
    rows["next", "reward"] = chosen(read["rewards"]).float().reshape(-1, 1)
    for name, flags in (("terminated", terminated), ("truncated", truncated), ("done", terminated | truncated)):
        rows["next", name] = chosen(flags).reshape(-1, 1)
    rows["episode"] = chosen(steps.episode[at])
    for name, array in read.items():
        if name.startswith("infos/"):
            rows["info", name.removeprefix("infos/")] = chosen(array)
    return rows


def _address(name: str) -> str:
    """Where D4RL's authors publish a data set.

    Raises:
        RLError: If no address is known.
    """
    task, _, version = name.rpartition("-")
    env, _, quality = task.partition("-")
    if env in _MUJOCO and quality in _QUALITY and version in ("v1", "v2"):
        return f"{_SITE}gym_mujoco_{version}/{env}_{quality.replace('-', '_')}-{version}.hdf5"
    if env in _HANDS and quality in ("human", "cloned", "expert") and version == "v1":
        return f"{_SITE}hand_dapg_v1/{env}-{quality}-v1.hdf5"
    if env == "maze2d" and version == "v1" and quality.endswith("-dense"):
        return f"{_SITE}maze2d/maze2d-{quality}-v1.hdf5"
    if env == "maze2d" and version == "v1":
        return f"{_SITE}maze2d/maze2d-{quality}-sparse-v1.hdf5"
    raise RLError(
        f"D4RLExperienceReplay knows no address of {name!r}, but those of {', '.join(_MUJOCO)} (v1, v2),"
        f" {', '.join(_HANDS)} and maze2d (v1). Download the file, and pass its path"
    )


_PROCGEN_SITE = "https://dl.fbaipublicfiles.com/DGRL/Procgen/Datasets/Compressed/"
_CATEGORIES = {
    "1M_E": "1M/level_200/expert",
    "1M_S": "1M/level_200/suboptimal",
    "10M": "10M/level_200/expert",
    "25M": "25M/level_200/expert",
    "level_1_E": "100k/level_1/expert",
    "level_1_S": "100k/level_1/suboptimal",
    "level_40_E": "100k/level_40/expert",
    "level_40_S": "100k/level_40/suboptimal",
}
_PROCGEN_OWNER = "GenDGRLExperienceReplay"
_PARTS = ("observations", "actions", "rewards", "dones")
_DAMAGED = (OSError, EOFError, ValueError, tarfile.TarError, lzma.LZMAError, zlib.error, pickle.UnpicklingError)
_ALLOWED = {
    (module, name)
    for package in ("numpy.core", "numpy._core")
    for module, name in (
        (f"{package}.multiarray", "_reconstruct"),
        (f"{package}.multiarray", "scalar"),
        (f"{package}.numeric", "_frombuffer"),
    )
} | {("numpy", "ndarray"), ("numpy", "dtype")}


@final
@foreign_arguments()
class GenDGRLExperienceReplay(DatasetBuffer):
    """A data set of Gen-DGRL as a replay buffer; see `DatasetBuffer` for its rows.

    It is of Mediratta et al. 2024, "The Generalization Gap in Offline Reinforcement Learning".

    Reads an archive (``.tar.xz`` and others), or a folder, of ``.npy`` files with one episode each: a dictionary of
    ``observations`` ``[T + 1, channels, height, width]``, ``actions``, ``rewards`` and ``dones`` ``[T]``. They are
    pickles, of which only NumPy arrays are loaded. Observations become uint8; ``dones`` are terminal, and the last
    step of an episode without one is truncated.

    Args:
        dataset_id: Path of an archive or folder, or a name such as ``"bigfish-1M_E"``, which is downloaded.
        batch_size: Number of rows of a sample.
        root: Folder in which rows are prepared; ``RL_DATASETS`` or ``~/.cache/rl/datasets`` if None.
        download: Whether a name is downloaded if its rows are not prepared; ``"force"`` downloads again.
        settings: Further arguments of `DatasetBuffer`: ``split_trajs``, ``progress``, ``sampler`` and others.

    Raises:
        RLError: If there is no such file, or it is damaged or of another layout.
        ContractError: If it has no rows.
    """

    def __init__(
        self,
        dataset_id: str,
        batch_size: int | None = None,
        *,
        root: str | Path | None = None,
        download: Download = False,
        **settings: Any,
    ) -> None:
        dataset_id = str(dataset_id)
        folder = folder_of(root, "gen-dgrl", dataset_id)

        def get(into: Path) -> Path:
            return fetch(
                _PROCGEN_OWNER, _procgen_address(dataset_id), into / "data.tar.xz", progress=settings.get("progress")
            )

        def read(path: Path) -> dict[str, Any]:
            files = sorted(path.rglob("*.npy")) if path.is_dir() else [path]
            if not files:
                raise ContractError(f"{_PROCGEN_OWNER}: {path} has no .npy file; it is no folder of episodes")
            return {
                "rows": lambda: sum(len(episode["actions"]) for _, episode in _episodes(path)),
                "episodes": lambda: (
                    _procgen_rows(name, episode, n) for n, (name, episode) in enumerate(_episodes(path))
                ),
                "source": fingerprint(files),
            }

        self._open(dataset_id, folder, download, get, read, batch_size=batch_size, **settings)


def _procgen_address(name: str) -> str:
    game, _, category = name.partition("-")
    if not game or category not in _CATEGORIES:
        raise RLError(f"{_PROCGEN_OWNER}: {name!r} is no GAME-CATEGORY; categories are {', '.join(_CATEGORIES)}")
    return f"{_PROCGEN_SITE}{_CATEGORIES[category]}/{game}.tar.xz"


def _files(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    if path.is_dir():
        for file in sorted(path.rglob("*.npy")):
            with file.open("rb") as opened:
                yield str(file), opened
        return
    with tarfile.open(path, "r|*") as archive:  # as a stream, which is unpacked once
        for member in archive:
            if member.isfile() and member.name.endswith(".npy"):
                opened = archive.extractfile(member)
                if opened is not None:
                    yield f"{member.name} in {path}", opened


def _episodes(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    name = str(path)
    try:
        for name, file in _files(path):
            episode = _load(file)
            missing = [part for part in _PARTS if not isinstance(episode.get(part), np.ndarray)]
            if missing:
                raise ValueError(f"it has no array of {', '.join(missing)}")
            steps = len(episode["actions"])
            lengths = {part: len(episode[part]) for part in _PARTS}
            if lengths != {"observations": steps + 1, "actions": steps, "rewards": steps, "dones": steps}:
                raise ValueError(f"its arrays differ in length: {lengths}")
            yield name, episode
    except _DAMAGED as error:
        raise RLError(
            f"{_PROCGEN_OWNER} cannot read {name}: {error}. It takes .npy files of episodes, and archives"
        ) from error


def _load(file: IO[bytes]) -> dict[str, Any]:
    data = io.BytesIO(file.read())
    version = np.lib.format.read_magic(data)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(data)
    if shape != () or dtype.kind != "O":
        raise ValueError(f"it holds {dtype} {list(shape)}, expected a dictionary")
    value = _Arrays(data).load()
    value = value.item() if isinstance(value, np.ndarray) and value.shape == () else value
    if not isinstance(value, dict):
        raise ValueError(f"it holds a {type(value).__name__}, expected a dictionary")
    return value


class _Arrays(pickle.Unpickler):
    """Loads arrays and plain containers, and nothing that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it holds {module}.{name}, which is not loaded")
        return super().find_class(module, name)


def _procgen_rows(name: str, episode: dict[str, Any], number: int) -> TensorDict:
    seen = torch.from_numpy(episode["observations"].astype(np.uint8))
    terminated = torch.from_numpy(episode["dones"].astype(bool)).reshape(-1, 1)
    steps = len(terminated)
    truncated = torch.zeros_like(terminated)
    truncated[-1:] = ~terminated[-1:]
    try:
        following = TensorDict(
            observation=seen[1:],
            reward=torch.from_numpy(episode["rewards"].astype(np.float32)).reshape(steps, 1),
            terminated=terminated,
            truncated=truncated,
            done=terminated | truncated,
            batch_size=[steps],
        )
        return TensorDict(
            observation=seen[:-1],
            action=torch.from_numpy(np.ascontiguousarray(episode["actions"])),
            next=following,
            episode=torch.full((steps,), number),
            batch_size=[steps],
        )
    except (TypeError, RuntimeError) as error:
        raise RLError(f"{_PROCGEN_OWNER} cannot read {name}: {error}") from error
