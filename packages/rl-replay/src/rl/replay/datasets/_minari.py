"""Data sets of Minari."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from rl.core.arguments import foreign_arguments
from rl.core.errors import MissingExtraError, RLError, SpecError
from rl.core.keys import NestedKey, unwrap
from rl.replay.datasets._base import DatasetBuffer
from rl.replay.datasets._files import Download, fingerprint, folder_of, open_hdf5, reading


@final
@foreign_arguments()
class MinariExperienceReplay(DatasetBuffer):
    """A data set of Minari as a replay buffer; see `DatasetBuffer` for its rows.

    Values are those that `GymWrapper(..., categorical_action_encoding=True)` of rl-envs writes and reads: choices of
    `Discrete` and `MultiDiscrete` count from 0, whatever the start of the space, a `Tuple` lies under ``observation``
    or ``action`` by index, and unsigned integers of 16 and more bits are signed ones of twice as many.

    Args:
        dataset_id: Id such as ``"mujoco/hopper/expert-v0"``.
        batch_size: Number of rows of a sample.
        root: Folder in which rows are prepared; ``RL_DATASETS`` or ``~/.cache/rl/datasets`` if None.
        download: Whether to let Minari download the data set if it is not there; ``"force"`` downloads again.
        settings: Further arguments of `DatasetBuffer`: ``split_trajs``, ``progress``, ``sampler`` and others.

    Raises:
        MissingExtraError: If Minari is not installed.
        RLError: If there is no such data set, it cannot be read, or its HDF5 files refer to other files.
        ContractError: If it is not complete.
        SpecError: If torch has no dtype for its integers.
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
        try:
            import minari
        except ImportError as error:
            raise MissingExtraError(
                f"MinariExperienceReplay needs {error.name}, which is not installed: pip install 'rl-replay[minari]'"
            ) from error
        try:
            if download == "force":
                minari.download_dataset(dataset_id, force_download=True)
            source = minari.load_dataset(dataset_id, download=bool(download))
        except Exception as error:  # files are missing, damaged or foreign
            reason = str(error).rstrip(".")
            raise RLError(
                f"MinariExperienceReplay cannot open {dataset_id!r}: {reason}. `minari list local` lists what is there;"
                " download=True downloads it"
            ) from error
        self.dataset_id, self.minari_dataset = dataset_id, source
        files = (file for file in Path(source.spec.data_path).rglob("*") if file.is_file())
        super().__init__(
            folder_of(root, "minari", dataset_id),
            int(source.total_steps),
            lambda: _episodes(source, dataset_id),
            source=fingerprint(files, "choices from 0"),
            batch_size=batch_size,
            **settings,
        )


def _episodes(source: Any, name: str) -> Iterator[TensorDict]:
    _check_files(source)
    episodes, number = source.iterate_episodes(), 0
    while True:
        with reading(
            "MinariExperienceReplay", repr(name), f"episode {number}", "arrays of equal length and the spaces"
        ):
            episode = next(episodes, None)
            rows = None if episode is None else _rows(episode, number, source.observation_space, source.action_space)
        if rows is None:
            return
        yield rows
        number += 1


def _check_files(source: Any) -> None:
    files = [*Path(source.spec.data_path).rglob("*.hdf5")]
    if files:
        import h5py  # Minari reads them with it

        for path in files:
            with open_hdf5("MinariExperienceReplay", h5py, path):
                pass


def _rows(episode: Any, number: int, seen: Any, acts: Any) -> TensorDict:
    """Return the steps of an episode, ``[T]``."""
    steps = len(episode.rewards)
    rows = TensorDict({}, batch_size=[steps])
    for key, values in _leaves(episode.observations, ("observation",), seen).items():
        rows.set(key, values[:-1])
        rows.set(("next", *(key if isinstance(key, tuple) else (key,))), values[1:])
    for key, values in _leaves(episode.actions, ("action",), acts).items():
        rows.set(key, values)
    terminated, truncated = (
        torch.as_tensor(flags).bool().reshape(steps, 1) for flags in (episode.terminations, episode.truncations)
    )
    rows["next", "reward"] = torch.as_tensor(episode.rewards).float().reshape(steps, 1)
    rows["next", "terminated"], rows["next", "truncated"] = terminated, truncated
    rows["next", "done"] = terminated | truncated
    rows["episode"] = torch.full((steps,), number)
    return rows


def _leaves(values: Any, path: tuple[str, ...], space: Any) -> dict[NestedKey, Tensor]:
    """Return the arrays of a space by key; those of a dictionary are at the root, or under ``action``."""
    parts = getattr(space, "spaces", None)
    if isinstance(parts, Mapping):
        inside = () if path == ("observation",) else path
        named = [((*inside, str(name)), values[name], part) for name, part in parts.items()]
    elif parts is not None:
        named = [((*path, str(index)), values[index], part) for index, part in enumerate(parts)]
    else:
        return {unwrap(path): _numbers(values, space, path)}
    return {key: leaf for inner, value, part in named for key, leaf in _leaves(value, inner, part).items()}


def _numbers(values: Any, space: Any, path: tuple[str, ...]) -> Tensor:
    """Return the values of a leaf, choices from 0 on."""
    array = np.asarray(values)
    if array.dtype == np.uint64 and (array > np.iinfo(np.int64).max).any():
        raise SpecError(
            f"MinariExperienceReplay: {'.'.join(path)} has values above int64, the widest integers of torch: convert it"
            " before the data set is written"
        )
    array = array.astype(_SIGNED.get(array.dtype.name, array.dtype), copy=False)
    start = getattr(space, "start", None)
    if start is None:
        return torch.as_tensor(array)
    chosen = array.astype(np.int64) - start
    count = space.nvec if hasattr(space, "nvec") else space.n
    if ((chosen < 0) | (chosen >= count)).any() or not np.equal(array, chosen + start).all():
        raise ValueError(f"{'.'.join(path)} has values that are not in {space}")
    return torch.from_numpy(chosen)


_SIGNED: dict[str, Any] = {"uint16": np.int32, "uint32": np.int64, "uint64": np.int64}
"""As environments have them: torch has few operations for the others."""
