"""Logs of DQN agents on Atari games: the DQN replay data set."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, final
from urllib.parse import quote

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl.core.arguments import as_integer, foreign_arguments
from rl.core.errors import ArgumentError, RLError
from rl.core.keys import INDEX
from rl.replay.datasets._base import DatasetBuffer
from rl.replay.datasets._files import Download, fetch, fingerprint, folder_of

_SITE = "https://storage.googleapis.com/atari-replay-datasets/dqn/"
_OBSERVATION = re.compile(r"\$store\$_observation_ckpt\.(\d+)\.gz")
_PARTS = ("observation", "action", "reward", "terminal")
_CHECKPOINTS = 50  # of a run
_PADDING = 3  # all-zero rows that Dopamine's memory writes before each episode
_CHUNK = 2048  # frames


@final
@foreign_arguments()
class AtariDQNExperienceReplay(DatasetBuffer):
    """Steps that a DQN agent stored while it learned an Atari game, as a replay buffer.

    The data set is of Agarwal et al. 2020, "An Optimistic Perspective on Offline Reinforcement Learning".

    Reads the checkpoints of Dopamine's replay memory, gzip'ed NumPy arrays ``$store$_observation_ckpt.0.gz`` and so on.

    Each frame is stored once, as ``frame`` uint8 ``[84, 84]``; samples have ``observation`` and ``("next",
    "observation")`` uint8 ``[frames, 84, 84]``, the last frames of the episode, with zeros before its first.
    ``step`` int64 ``[]`` counts the steps of an episode; `DatasetBuffer` describes the other entries, ``action`` int64
    ``[]``. ``buffer[i]`` is a stored row, with ``frame``.

    The logs do not tell what follows the last step of an episode: its last frame is repeated there. The last step of a
    checkpoint is truncated if it is not terminal. All-zero rows that Dopamine writes before an episode (up to 3) are
    left out.

    Args:
        dataset_id: Path of a folder with these files, or a name such as ``"Pong/1"`` (game and run) to download.
        batch_size: Number of rows of a sample.
        checkpoints: Numbers of checkpoints, of 10^6 steps each; if None all of the folder, 0 to 49 of a download.
        frames: Number of frames of an observation.
        root: Folder in which rows are prepared; ``RL_DATASETS`` or ``~/.cache/rl/datasets`` if None.
        download: Whether a name is downloaded if its rows are not prepared; ``"force"`` downloads again.
        settings: Further arguments of `DatasetBuffer`: ``progress``, ``sampler`` and others.

    Raises:
        RLError: If there are no such files, or one is damaged or of another layout.
        ArgumentError: If an argument is out of range.
    """

    def __init__(
        self,
        dataset_id: str,
        batch_size: int | None = None,
        *,
        checkpoints: list[int] | None = None,
        frames: int = 4,
        root: str | Path | None = None,
        download: Download = False,
        **settings: Any,
    ) -> None:
        frames = as_integer(frames, "AtariDQNExperienceReplay", "frames", 1)
        if settings.get("split_trajs"):
            raise ArgumentError("AtariDQNExperienceReplay stacks frames of single steps: leave split_trajs out")
        dataset_id, transform = str(dataset_id), settings.pop("transform", None)
        folder = folder_of(root, "atari-dqn", dataset_id)
        if checkpoints is not None:
            folder = folder.with_name("-".join([folder.name, *map(str, checkpoints)]))

        def get(into: Path) -> Path:
            for number in range(_CHECKPOINTS) if checkpoints is None else checkpoints:
                for part in _PARTS:
                    file = f"$store$_{part}_ckpt.{number}.gz"
                    address = f"{_SITE}{dataset_id}/replay_logs/{quote(file)}"
                    fetch("AtariDQNExperienceReplay", address, into / file, progress=settings.get("progress"))
            return into

        def read(path: Path) -> dict[str, Any]:
            numbers = _numbers(path, checkpoints)
            return {
                "rows": sum(len(_array(_file(path, "terminal", number))) for number in numbers),
                "episodes": lambda: _all_rows(path, numbers),
                "exact": False,
                "source": fingerprint(_file(path, part, number) for number in numbers for part in _PARTS),
            }

        self._open(dataset_id, folder, download, get, read, batch_size=batch_size, **settings)
        self.append_transform(lambda sample: _stacked(self.data, sample, frames))
        if transform is not None:
            self.append_transform(transform)


def _stacked(data: TensorDictBase, sample: TensorDictBase, frames: int) -> TensorDictBase:
    """Return a sample with stacks of frames in place of single ones."""
    stored: Tensor = data["frame"]
    index: Tensor = sample[INDEX]
    offsets = torch.arange(1 - frames, 2)  # of the frames of observation and next observation
    known = sample["step"].unsqueeze(-1) + offsets >= 0
    rows = index.unsqueeze(-1) + offsets
    # Those of the log: samplers of slices set flags of the sample where a slice ends.
    rows[..., -1] -= data["next", "done"][index].squeeze(-1).long()
    seen = stored[rows.clamp_(min=0)].mul_(known.reshape(*known.shape, 1, 1))
    sample = sample.exclude("frame")
    sample["observation"], sample["next", "observation"] = seen[..., :-1, :, :].clone(), seen[..., 1:, :, :].clone()
    return sample


def _numbers(folder: Path, asked: list[int] | None) -> list[int]:
    """Numbers of the checkpoints.

    Raises:
        RLError: If a file is missing.
    """
    present = sorted(int(found[1]) for file in folder.glob("*.gz") if (found := _OBSERVATION.fullmatch(file.name)))
    numbers = present if asked is None else list(asked)
    if not numbers:
        raise RLError(
            f"AtariDQNExperienceReplay: {folder} has no $store$_observation_ckpt.N.gz; it is no folder of replay logs"
        )
    missing = [file.name for n in numbers for part in _PARTS if not (file := _file(folder, part, n)).is_file()]
    if missing:
        raise RLError(f"AtariDQNExperienceReplay: {folder} lacks {', '.join(missing)}; name other checkpoints")
    return numbers


def _file(folder: Path, part: str, number: int) -> Path:
    return folder / f"$store$_{part}_ckpt.{number}.gz"


def _damaged(path: Path, error: object) -> RLError:
    return RLError(f"AtariDQNExperienceReplay cannot read {path}: {error}. It takes complete gzip'ed NumPy arrays")


def _array(path: Path) -> Any:
    try:
        with gzip.open(path) as file:
            values = np.load(file, allow_pickle=False)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise _damaged(path, error) from error
    if values.ndim != 1:
        raise _damaged(path, f"it has shape {list(values.shape)}, expected [steps]")
    return values


def _frames(path: Path, count: int) -> Iterator[Any]:
    """Yield the frames of a checkpoint in parts; one array does not fit into memory."""
    try:
        with gzip.open(path) as file:
            shape, dtype = _header(file)
            if len(shape) != 3 or shape[0] != count or dtype != np.uint8:
                raise ValueError(f"it has {dtype} {list(shape)}, expected uint8 [{count}, height, width]")
            size = shape[1] * shape[2]
            for start in range(0, count, _CHUNK):
                part = min(_CHUNK, count - start)
                raw = file.read(part * size)
                if len(raw) < part * size:
                    raise ValueError(f"it ends after {start} of {count} frames")
                yield np.frombuffer(raw, np.uint8).reshape(part, *shape[1:])
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise _damaged(path, error) from error


def _header(file: Any) -> tuple[tuple[int, ...], Any]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if fortran and len(shape) > 1:
        raise ValueError("it is stored by columns")
    return shape, dtype


def _all_rows(folder: Path, numbers: list[int]) -> Iterator[TensorDict]:
    first = 0
    for number in numbers:
        first = yield from _rows(folder, number, first)


def _rows(folder: Path, number: int, first: int) -> Generator[TensorDict, None, int]:
    """Yield the steps of a checkpoint; returns the number of the next episode."""
    action, reward, terminal = (_array(_file(folder, part, number)) for part in _PARTS[1:])
    total = len(terminal)
    for part, values in (("action", action), ("reward", reward)):
        if len(values) != total:
            raise _damaged(_file(folder, part, number), f"it has {len(values)} steps, the others {total}")
    filled, newest = _written(folder, number, total)
    terminated = terminal.astype(bool)
    last = terminated.copy()
    last[[filled - 1, newest]] = True
    begun = np.concatenate([[True], last[:-1]])
    start = np.maximum.accumulate(np.where(begun, np.arange(total), 0))  # of the episode of each row
    since, episode = np.arange(total) - start, first - 1 + np.cumsum(begun)
    quiet = (action == 0) & (reward == 0) & ~last & (since < _PADDING)
    padding, removed = np.zeros(total, bool), np.zeros(total + 1, np.int64)
    at = 0
    for frames in _frames(_file(folder, "observation", number), total):
        part = slice(at, at + len(frames))
        dark = quiet[part].copy()
        dark[dark] = ~frames[dark].any((1, 2))
        for place in range(_PADDING):  # padding stands at the beginning of an episode
            now = dark & (since[part] == place)
            if place:
                now &= np.concatenate([[at > 0 and padding[at - 1]], padding[part][:-1]])
            padding[part] |= now
        removed[at + 1 : part.stop + 1] = removed[at] + np.cumsum(padding[part])
        step = since[part] - (removed[1:][part] - removed[start[part]])
        keep = ~padding[part] & (np.arange(at, part.stop) < filled)
        yield TensorDict(
            {
                "frame": torch.from_numpy(frames[keep]),
                "action": torch.from_numpy(action[part][keep].astype(np.int64)),
                "step": torch.from_numpy(step[keep]),
                "episode": torch.from_numpy(episode[part][keep]),
                "next": TensorDict(
                    {
                        "reward": torch.from_numpy(reward[part][keep].astype(np.float32)).unsqueeze(-1),
                        "terminated": torch.from_numpy(terminated[part][keep]).unsqueeze(-1),
                        "truncated": torch.from_numpy((last & ~terminated)[part][keep]).unsqueeze(-1),
                        "done": torch.from_numpy(last[part][keep]).unsqueeze(-1),
                    },
                    batch_size=[int(keep.sum())],
                ),
            },
            batch_size=[int(keep.sum())],
        )
        at = part.stop
    return int(episode[filled - 1]) + 1


def _written(folder: Path, number: int, total: int) -> tuple[int, int]:
    """How many rows of a memory were written, and the newest of them."""
    path = folder / f"add_count_ckpt.{number}.gz"
    if not total:
        raise _damaged(_file(folder, "terminal", number), "it has no steps")
    if not path.is_file():
        return total, total - 1
    try:
        with gzip.open(path) as file:
            added = int(np.load(file, allow_pickle=False))
    except (OSError, EOFError, ValueError, TypeError, zlib.error) as error:
        raise _damaged(path, error) from error
    return (total, (added - 1) % total) if added >= total else (max(added, 1), max(added, 1) - 1)
