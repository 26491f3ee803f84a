"""Data sets in the HDF5 files of D4RL."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from tensordict import TensorDict

from rl.core.errors import MissingExtraError, RLError
from rl.replay import _foreign
from rl.replay.datasets._base import DatasetBuffer
from rl.replay.datasets._files import Download, fetch, fingerprint, folder_of, open_hdf5, reading, source_of

__all__ = ["D4RLExperienceReplay"]

_OWNER = "D4RLExperienceReplay"
_SITE = "http://rail.eecs.berkeley.edu/datasets/offline_rl/"
_MUJOCO = ("halfcheetah", "hopper", "walker2d", "ant")
_QUALITY = ("random", "medium", "expert", "medium-replay", "full-replay", "medium-expert")
_HANDS = ("pen", "hammer", "relocate", "door")
_NEEDED = ("observations", "actions", "rewards", "terminals")
_CHUNK = 1 << 22  # bytes of observations that are read at once


@final
@_foreign.dataset
class D4RLExperienceReplay(DatasetBuffer):
    """A data set in a HDF5 file of D4RL as a replay buffer; see `DatasetBuffer` for its rows.

    ``terminals`` become ``("next", "terminated")``, ``timeouts`` ``("next", "truncated")``; arrays under ``infos`` are
    entries under ``"info"``. A file without ``next_observations`` does not tell what follows the last step of an
    episode: a step that timed out is left out and the one before it is truncated, as D4RL's own function for
    Q-learning does; after a terminal step, the next observation is zero.

    Args:
        dataset_id: path of a file, or a name such as ``"hopper-medium-v2"``, which is downloaded.
        batch_size: rows of a sample.
        max_episode_steps: length of episodes of a file without ``timeouts``, whose limit D4RL takes from the
            environment; 0 if only terminal steps end episodes.
        root: folder in which rows are prepared; ``RL_DATASETS`` or ``~/.cache/rl/datasets`` if None.
        download: whether a name is downloaded if its rows are not prepared; ``"force"`` downloads again.
        settings: further arguments of `DatasetBuffer`: ``split_trajs``, ``progress``, ``sampler`` and others.

    Raises:
        MissingExtraError: if h5py is not installed.
        RLError: if there is no such file, it is damaged or of another layout, or refers to other files (external links,
            external storage, virtual datasets).
        ContractError: if it has no rows.
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
    """The array of a name, of which only shape and dtype are read."""
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
            f"{_OWNER}: {path} has no timeouts. Give max_episode_steps, the time limit of the environment,"
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
    """The transitions, in parts."""
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
        RLError: if no address is known.
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
        f" {', '.join(_HANDS)} and maze2d (v1). Download the file, and give its path"
    )
