"""Data sets of Gen-DGRL: episodes of Procgen."""

from __future__ import annotations

import io
import lzma
import pickle
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, final

import numpy as np
import torch
from tensordict import TensorDict

from rl.core.errors import ContractError, RLError
from rl.replay import _foreign
from rl.replay.datasets._base import DatasetBuffer
from rl.replay.datasets._files import Download, fetch, fingerprint, folder_of

__all__ = ["GenDGRLExperienceReplay"]

_SITE = "https://dl.fbaipublicfiles.com/DGRL/Procgen/Datasets/Compressed/"
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
_OWNER = "GenDGRLExperienceReplay"
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
@_foreign.dataset
class GenDGRLExperienceReplay(DatasetBuffer):
    """A data set of Gen-DGRL as a replay buffer; see `DatasetBuffer` for its rows.

    It is of Mediratta et al. 2024, "The Generalization Gap in Offline Reinforcement Learning".

    Reads an archive (``.tar.xz`` and others), or a folder, of ``.npy`` files with one episode each: a dictionary of
    ``observations`` ``[T + 1, channels, height, width]``, ``actions``, ``rewards`` and ``dones`` ``[T]``. They are
    pickles, of which only NumPy arrays are loaded. Observations become uint8; ``dones`` are terminal, and the last
    step of an episode without one is truncated.

    Args:
        dataset_id: path of an archive or folder, or a name such as ``"bigfish-1M_E"``, which is downloaded.
        batch_size: rows of a sample.
        root: folder in which rows are prepared; ``RL_DATASETS`` or ``~/.cache/rl/datasets`` if None.
        download: whether a name is downloaded if its rows are not prepared; ``"force"`` downloads again.
        settings: further arguments of `DatasetBuffer`: ``split_trajs``, ``progress``, ``sampler`` and others.

    Raises:
        RLError: if there is no such file, or it is damaged or of another layout.
        ContractError: if it has no rows.
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
            return fetch(_OWNER, _address(dataset_id), into / "data.tar.xz", progress=settings.get("progress"))

        def read(path: Path) -> dict[str, Any]:
            files = sorted(path.rglob("*.npy")) if path.is_dir() else [path]
            if not files:
                raise ContractError(f"{_OWNER}: {path} has no .npy file; it is no folder of episodes")
            return {
                "rows": lambda: sum(len(episode["actions"]) for _, episode in _episodes(path)),
                "episodes": lambda: (_rows(name, episode, n) for n, (name, episode) in enumerate(_episodes(path))),
                "source": fingerprint(files),
            }

        self._open(dataset_id, folder, download, get, read, batch_size=batch_size, **settings)


def _address(name: str) -> str:
    game, _, category = name.partition("-")
    if not game or category not in _CATEGORIES:
        raise RLError(f"{_OWNER}: {name!r} is no GAME-CATEGORY; categories are {', '.join(_CATEGORIES)}")
    return f"{_SITE}{_CATEGORIES[category]}/{game}.tar.xz"


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
        raise RLError(f"{_OWNER} cannot read {name}: {error}. It takes .npy files of episodes, and archives") from error


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


def _rows(name: str, episode: dict[str, Any], number: int) -> TensorDict:
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
        raise RLError(f"{_OWNER} cannot read {name}: {error}") from error
