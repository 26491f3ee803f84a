"""Data sets of Open X-Embodiment: episodes of robots, in the files of TensorFlow Datasets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from rl.core.errors import RLError
from rl.core.keys import unwrap
from rl.replay import _foreign
from rl.replay.datasets._base import DatasetBuffer
from rl.replay.datasets._files import Download, fetch, fingerprint, folder_of
from rl.replay.datasets._images import decoded
from rl.replay.datasets._tfrecord import Values, examples

__all__ = ["OpenXExperienceReplay"]

_SITE = "https://storage.googleapis.com/gresearch/robotics/"
_FLAGS = ("is_first", "is_last", "is_terminal")
_OWNER = "OpenXExperienceReplay"


class _Feature(NamedTuple):
    """An entry of a step: an array, a picture or a text."""

    shape: tuple[int, ...]
    dtype: str
    kind: str


@final
@_foreign.dataset
class OpenXExperienceReplay(DatasetBuffer):
    """A data set of Open X-Embodiment, or another one in RLDS format, as a replay buffer.

    See https://robotics-transformer-x.github.io, and `DatasetBuffer` for its rows.

    Reads the TFRecord files, ``features.json`` and ``dataset_info.json`` that TensorFlow Datasets writes, without
    TensorFlow. Observations keep the names of the data set, as ``("observation", "image")``: pictures are uint8
    ``[channels, height, width]``, ``observation`` and ``action`` may be TensorDicts. A text of each step, such as
    ``language_instruction``, is an int64 ``[]``, a place in ``texts[name]``. The last step of an RLDS episode is the
    observation after the last action: an episode of n steps gives n - 1 rows.

    Args:
        dataset_id: path of the folder of a version, or a name such as ``"bridge/0.1.0"``, which is downloaded.
        batch_size: rows of a sample.
        split: part of the data set.
        root: folder in which rows are prepared; ``RL_DATASETS`` or ``~/.cache/rl/datasets`` if None.
        download: whether a name is downloaded if its rows are not prepared; ``"force"`` downloads again.
        settings: further arguments of `DatasetBuffer`: ``split_trajs``, ``progress``, ``sampler`` and others.

    Raises:
        MissingExtraError: if there are pictures, and Pillow is not installed.
        RLError: if there are no such files, or one is damaged or of another layout.
    """

    def __init__(
        self,
        dataset_id: str,
        batch_size: int | None = None,
        *,
        split: str = "train",
        root: str | Path | None = None,
        download: Download = False,
        **settings: Any,
    ) -> None:
        dataset_id = str(dataset_id)
        folder = folder_of(root, "openx", dataset_id)
        folder = folder.with_name(f"{folder.name}-{split}")

        def get(into: Path) -> Path:
            for file in ("features.json", "dataset_info.json"):
                fetch(_OWNER, f"{_SITE}{dataset_id}/{file}", into / file, progress=settings.get("progress"))
            for name in _shards(into, split):
                fetch(_OWNER, f"{_SITE}{dataset_id}/{name}", into / name, progress=settings.get("progress"))
            return into

        def read(path: Path) -> dict[str, Any]:
            files = [path / name for name in _shards(path, split)]
            missing = [file.name for file in files if not file.is_file()]
            if missing:
                raise RLError(f"{_OWNER}: {path} lacks {', '.join(missing)}")
            features, texts = _features(path), dict[str, list[str]]()
            return {
                "rows": lambda: _count(files),
                "episodes": lambda: _episodes(files, features, texts),
                "source": fingerprint([*files, path / "features.json"]),
                "texts": texts,
            }

        self._open(dataset_id, folder, download, get, read, batch_size=batch_size, **settings)


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise RLError(
            f"{_OWNER} cannot read {path}: {error}. It takes the folder of a version, with features.json,"
            " dataset_info.json and TFRecord files"
        ) from error


def _shards(folder: Path, split: str) -> list[str]:
    """Names of the files of a part."""
    info = _json(folder / "dataset_info.json")
    splits = {part.get("name"): part for part in info.get("splits", ())}
    if split not in splits:
        raise RLError(f"{_OWNER}: {folder} has no part {split!r}, but {', '.join(map(str, splits)) or 'none'}")
    count, name = len(splits[split].get("shardLengths", ())), info.get("name", "")
    template = splits[split].get("filepathTemplate", "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}")
    known = {"DATASET": name, "SPLIT": split, "FILEFORMAT": "tfrecord"}
    return [template.format(SHARD_X_OF_Y=f"{shard:05d}-of-{count:05d}", **known) for shard in range(count)]


def _features(folder: Path) -> dict[tuple[str, ...], _Feature]:
    """The entries of a step by key."""
    try:
        steps = _json(folder / "features.json")["featuresDict"]["features"]["steps"]
        steps = steps["sequence"]["feature"]["featuresDict"]["features"]
        return dict(_leaves(steps, ()))
    except (KeyError, TypeError, AttributeError) as error:
        raise RLError(
            f"{_OWNER}: {folder / 'features.json'} describes no steps of episodes ({error} is missing)"
        ) from error


def _leaves(node: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], _Feature]]:
    for name, feature in node.items():
        key = (*path, name)
        if "featuresDict" in feature:
            yield from _leaves(feature["featuresDict"]["features"], key)
        elif "image" in feature:
            yield key, _Feature(_shape(feature["image"]), "uint8", "image")
        elif "text" in feature:
            yield key, _Feature((), "string", "text")
        elif "tensor" in feature:
            dtype = feature["tensor"]["dtype"]
            yield key, _Feature(_shape(feature["tensor"]), dtype, "text" if dtype in ("string", "object") else "tensor")
        else:
            raise RLError(f"{_OWNER}: {'/'.join(key)} is of a kind that is not read: {sorted(feature)}")


def _shape(feature: Mapping[str, Any]) -> tuple[int, ...]:
    dimensions = feature.get("shape", {}).get("dimensions", ())
    return tuple(int(size) for size in dimensions)


def _count(files: list[Path]) -> int:
    lengths = (len(example.get("steps/is_first", ())) for file in files for example in examples(_OWNER, file))
    return sum(max(length - 1, 0) for length in lengths)


def _episodes(
    files: list[Path], features: Mapping[tuple[str, ...], _Feature], texts: dict[str, list[str]]
) -> Iterator[TensorDict]:
    number = 0
    places: dict[str, dict[str, int]] = {}
    for file in files:
        for example in examples(_OWNER, file):
            try:
                rows = _rows(example, features, number, places)
            except (KeyError, ValueError, TypeError) as error:
                raise RLError(f"{_OWNER}: episode {number} in {file} does not fit features.json: {error}") from error
            texts.update({name: list(known) for name, known in places.items()})
            number += 1
            if len(rows):
                yield rows


def _rows(
    example: Mapping[str, Values],
    features: Mapping[tuple[str, ...], _Feature],
    number: int,
    places: dict[str, dict[str, int]],
) -> TensorDict:
    """The transitions of an episode."""
    length = len(example["steps/is_first"])
    found: dict[tuple[str, ...], Tensor] = {}
    for key, feature in features.items():
        name = "/".join(key)
        found[key] = _entry(name, example[f"steps/{name}"], feature, length, places)
    steps = max(length - 1, 0)
    rows = TensorDict({}, batch_size=[steps])
    for key, values in found.items():
        if key[0] == "observation":
            rows.set(unwrap(key), values[:-1])
            rows.set(("next", *key), values[1:])
        elif key[0] not in (*_FLAGS, "reward"):
            rows.set(unwrap(key), values[:-1])
    if ("reward",) in found:
        rows["next", "reward"] = found["reward",][:-1].float().reshape(steps, 1)
    terminated = found["is_terminal",][1:].bool().reshape(steps, 1)
    last = found["is_last",][1:].bool().reshape(steps, 1)
    rows["next", "terminated"], rows["next", "truncated"] = terminated, last & ~terminated
    rows["next", "done"] = last | terminated
    rows["episode"] = torch.full((steps,), number)
    return rows


def _entry(name: str, values: Values, feature: _Feature, length: int, places: dict[str, dict[str, int]]) -> Tensor:
    if feature.kind == "text":
        known = places.setdefault(name, {})
        words = [bytes(value).decode() for value in values]
        array = np.array([known.setdefault(word, len(known)) for word in words], np.int64)
        return torch.from_numpy(array.reshape(length, *feature.shape))
    if feature.kind == "image":
        pictures = decoded(_OWNER, "openx", name, values)  # type: ignore[arg-type]
        if len(pictures) != length:
            raise ValueError(f"{name} has {len(pictures)} pictures for {length} steps")
        return pictures
    array = np.asarray(values).reshape(length, *feature.shape)
    return torch.from_numpy(array.astype(np.dtype(feature.dtype)))
