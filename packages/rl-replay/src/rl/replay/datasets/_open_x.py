"""Data sets of Open X-Embodiment: episodes of robots, in the files of TensorFlow Datasets."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple, final

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from rl.core.arguments import foreign_arguments
from rl.core.errors import RLError
from rl.core.keys import unwrap
from rl.replay.datasets._base import DatasetBuffer
from rl.replay.datasets._files import Download, decoded, fetch, fingerprint, folder_of

Values = list[bytes] | np.ndarray
"""Values of a feature: byte strings, float32 or int64."""

_POLYNOMIAL = 0x82F63B78  # CRC-32C
_MASK = 0xA282EAD8
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def _table() -> tuple[int, ...]:
    rows: list[int] = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        rows.append(value)
    return tuple(rows)


_TABLE = _table()


def masked_crc(data: bytes) -> int:
    """Compute the checksum of a TFRecord file.

    Example:
        >>> crc = (masked_crc(b"123456789") - _MASK) & 0xFFFFFFFF
        >>> hex((crc << 15 | crc >> 17) & 0xFFFFFFFF)  # the check value of CRC-32C
        '0xe3069283'
    """
    value = 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ value >> 8
    value ^= 0xFFFFFFFF
    return ((value >> 15 | value << 17) + _MASK) & 0xFFFFFFFF


def examples(owner: str, path: Path) -> Iterator[dict[str, Values]]:
    """Yield the messages of a file.

    The checksums of the lengths are verified; those of the messages, which may be large, are not.

    Raises:
        RLError: If the file is damaged, or no TFRecord file.
    """
    try:
        with path.open("rb") as file:
            while (record := _record(file)) is not None:
                yield parse_example(record)
    except (OSError, ValueError, IndexError, struct.error) as error:
        raise RLError(f"{owner} cannot read {path}: {error}. It takes complete TFRecord files of examples") from error


def _record(file: IO[bytes]) -> bytes | None:
    head = file.read(12)
    if not head:
        return None
    if len(head) < 12:
        raise ValueError("it ends within the length of a record")
    length, checksum = struct.unpack("<QI", head)
    if masked_crc(head[:8]) != checksum:
        raise ValueError("the checksum of a length differs")
    record = file.read(length)
    if len(record) < length or len(file.read(4)) < 4:
        raise ValueError("it ends within a record")
    return record


def parse_example(data: bytes) -> dict[str, Values]:
    """Return the features of a `tf.train.Example` by name.

    Raises:
        ValueError: If it is none.
    """
    found: dict[str, Values] = {}
    for field, features in _fields(memoryview(data)):
        for entry, pair in _fields(features) if field == 1 else ():
            if entry == 1:
                parts = dict(_fields(pair))
                found[bytes(parts[1]).decode()] = _values(parts.get(2, memoryview(b"")))
    return found


def _values(feature: memoryview) -> Values:
    for kind, values in _fields(feature):
        if kind == 1:
            return [bytes(value) for _, value in _fields(values)]
        if kind == 2:
            return np.concatenate([np.empty(0, "<f4"), *(np.frombuffer(part, "<f4") for _, part in _fields(values))])
        if kind == 3:
            return np.array([number for _, part in _fields(values) for number in _integers(part)], np.int64)
    return []


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the fields of a message of protocol buffers, by number; a single integer as its bytes."""
    at = 0
    while at < len(data):
        tag, at = _integer(data, at)
        kind, start = tag & 7, at
        if kind == _BYTES:
            length, start = _integer(data, at)
            at = start + length
        elif kind == _VARINT:
            _, at = _integer(data, at)
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"no message of protocol buffers: wire type {kind}")
        if at > len(data):
            raise ValueError("a message of protocol buffers ends early")
        yield tag >> 3, data[start:at]


def _integers(data: memoryview) -> Iterator[int]:
    at = 0
    while at < len(data):
        value, at = _integer(data, at)
        yield value - (1 << 64) if value >> 63 else value


def _integer(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("no message of protocol buffers: an integer of more than 64 bits")


_SITE = "https://storage.googleapis.com/gresearch/robotics/"
_FLAGS = ("is_first", "is_last", "is_terminal")
_OWNER = "OpenXExperienceReplay"


class _Feature(NamedTuple):
    """An entry of a step: an array, an image or a text."""

    shape: tuple[int, ...]
    dtype: str
    kind: str


@final
@foreign_arguments()
class OpenXExperienceReplay(DatasetBuffer):
    """A data set of Open X-Embodiment, or another one in RLDS format, as a replay buffer.

    See https://robotics-transformer-x.github.io, and `DatasetBuffer` for its rows.

    Reads the TFRecord files, ``features.json`` and ``dataset_info.json`` that TensorFlow Datasets writes, without
    TensorFlow. Observations keep the names of the data set, as ``("observation", "image")``: images are uint8
    ``[channels, height, width]``, ``observation`` and ``action`` may be TensorDicts. A text of each step, such as
    ``language_instruction``, is an int64 ``[]``, an index into ``texts[name]``. The last step of an RLDS episode is the
    observation after the last action: an episode of n steps yields n - 1 rows.

    Args:
        dataset_id: Path of the folder of a version, or a name such as ``"bridge/0.1.0"``, which is downloaded.
        batch_size: Number of rows of a sample.
        split: Part of the data set.
        root: Folder in which rows are prepared; ``RL_DATASETS`` or ``~/.cache/rl/datasets`` if None.
        download: Whether a name is downloaded if its rows are not prepared; ``"force"`` downloads again.
        settings: Further arguments of `DatasetBuffer`: ``split_trajs``, ``progress``, ``sampler`` and others.

    Raises:
        MissingExtraError: If there are images, and Pillow is not installed.
        RLError: If there are no such files, or one is damaged or of another layout.
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
    """Return the entries of a step by key."""
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
    """Return the transitions of an episode."""
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
            raise ValueError(f"{name} has {len(pictures)} images for {length} steps")
        return pictures
    array = np.asarray(values).reshape(length, *feature.shape)
    return torch.from_numpy(array.astype(np.dtype(feature.dtype)))
