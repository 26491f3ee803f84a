"""Data sets of LeRobot: Parquet files of robots' episodes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast, final

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl.core.arguments import foreign_arguments
from rl.core.errors import ArgumentError, MissingExtraError, RLError
from rl.core.keys import unwrap
from rl.replay.datasets._base import DatasetBuffer
from rl.replay.datasets._files import Download, decoded, fingerprint, folder_of

_OWNER = "LeRobotExperienceReplay"
_KEYS = {"episode_index": "episode", "frame_index": "frame", "task_index": "task"}
_IMAGES = "observation.images."
_VERSIONS = ("v2.0", "v2.1", "v3.0")
_CHUNK = 1 << 23  # bytes that are read at once, of decoded rows


@final
@foreign_arguments()
class LeRobotExperienceReplay(DatasetBuffer):
    """A data set of LeRobot, in the layouts v2.0, v2.1 and v3.0, as a replay buffer; see `DatasetBuffer` for its rows.

    Entries are named after the columns: ``("observation", "state")``, ``("observation", "image", CAMERA)`` uint8
    ``[3, height, width]``, ``action``, ``timestamp``. ``episode`` and ``frame`` int64 ``[]`` count episodes and their
    steps; ``task`` int64 ``[]`` is an index into ``texts["task"]``. ``("next", "reward")`` is there if rewards are.

    The data do not tell what follows the last step of an episode: its observation is repeated there. The last step is
    terminated if the data set has ``next.done`` and marks it, else truncated.

    Args:
        dataset_id: Path of a folder with ``meta/info.json``, or a name on the Hugging Face Hub such as
            ``"lerobot/pusht"``, which is downloaded.
        batch_size: Number of rows of a sample.
        video: False leaves out videos. They are not decoded: a data set with videos is rejected if None.
        root: Folder in which rows are prepared; ``RL_DATASETS`` or ``~/.cache/rl/datasets`` if None.
        download: Whether a name is downloaded if its rows are not prepared; ``"force"`` downloads again.
        settings: Further arguments of `DatasetBuffer`: ``split_trajs``, ``progress``, ``sampler`` and others.

    Raises:
        MissingExtraError: If PyArrow is not installed; or Pillow, for images; or huggingface_hub, for downloads.
        RLError: If there are no such files, or one is damaged or of another layout.
        ContractError: If there are fewer rows than the data set states.
        ArgumentError: If there are videos, and `video` is not False.
    """

    def __init__(
        self,
        dataset_id: str,
        batch_size: int | None = None,
        *,
        video: Literal[False] | None = None,
        root: str | Path | None = None,
        download: Download = False,
        **settings: Any,
    ) -> None:
        if video:
            raise ArgumentError(f"{_OWNER} does not decode videos: video=False leaves them out")
        dataset_id = str(dataset_id)
        folder = folder_of(root, "lerobot", dataset_id)

        def read(path: Path) -> dict[str, Any]:
            parquet = _parquet()
            info, files = _info(path, video=video), sorted(path.glob("data/*/*.parquet"))
            if not files:
                raise RLError(f"{_OWNER}: {path} has no data/*/*.parquet")
            return {
                "rows": int(info["total_frames"]),
                "episodes": lambda: _rows(parquet, files, info["features"]),
                "source": fingerprint([*files, path / "meta" / "info.json"]),
                "texts": {"task": _tasks(parquet, path)},
            }

        get = partial(_downloaded, dataset_id)
        self._open(dataset_id, folder, download, get, read, batch_size=batch_size, **settings)


def _parquet() -> Any:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError(
            f"{_OWNER} needs PyArrow, which is not installed: pip install 'rl-replay[lerobot]'"
        ) from error
    return parquet


def _downloaded(name: str, into: Path) -> Path:
    try:
        from huggingface_hub import snapshot_download  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingExtraError(
            f"{_OWNER} downloads with the client of the Hugging Face Hub, which is not installed:"
            " pip install huggingface_hub. Or pass the path of a copy"
        ) from error
    try:
        snapshot_download(name, repo_type="dataset", local_dir=into, allow_patterns=["meta/*", "data/*"])
    except Exception as error:  # of the network, and of the client
        raise RLError(f"{_OWNER} cannot download {name!r}: {error}. Pass the path of a copy") from error
    return into


def _info(folder: Path, *, video: bool | None) -> dict[str, Any]:
    path = folder / "meta" / "info.json"
    try:
        info = json.loads(path.read_text())
        version, features = info["codebase_version"], info["features"]
        int(info["total_frames"])
        videos = [name for name, feature in features.items() if feature["dtype"] == "video"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RLError(f"{_OWNER} cannot read {path}: {error!r}. It takes folders of LeRobot") from error
    if version not in _VERSIONS:
        raise RLError(f"{_OWNER} reads the layouts {', '.join(_VERSIONS)}; {folder} has {version}")
    if videos and video is None:
        raise ArgumentError(
            f"{_OWNER}: {folder} has the videos {', '.join(videos)}, which are not decoded: video=False leaves them out"
        )
    return info


def _tasks(parquet: Any, folder: Path) -> list[str]:
    """Return the descriptions of the tasks by number."""
    lines, table = folder / "meta" / "tasks.jsonl", folder / "meta" / "tasks.parquet"
    try:
        if lines.is_file():
            rows = [json.loads(line) for line in lines.read_text().splitlines() if line.strip()]
            found = {int(row["task_index"]): str(row["task"]) for row in rows}
        elif table.is_file():
            columns = parquet.read_table(table).to_pydict()
            names = next(column for name, column in columns.items() if name != "task_index")
            found = dict(zip(columns["task_index"], map(str, names), strict=True))
        else:
            return []
    except (OSError, ValueError, KeyError, TypeError, StopIteration) as error:
        raise RLError(f"{_OWNER} cannot read the tasks in {folder / 'meta'}: {error!r}") from error
    return [found.get(number, "") for number in range(max(found, default=-1) + 1)]


def _rows(parquet: Any, files: Sequence[Path], features: Mapping[str, Any]) -> Iterator[TensorDictBase]:
    """Yield steps in parts, each with the observation of the next one."""
    held: TensorDict | None = None  # the last step of the part before
    size = max(_CHUNK // (4 * sum(math.prod(feature["shape"]) for feature in features.values())), 1)
    for file in files:
        try:
            for table in parquet.ParquetFile(file).iter_batches(size):
                part = _part(table, features)
                joined = part if held is None else cast("TensorDict", torch.cat([held, part]))  # pyright: ignore[reportArgumentType]
                if len(joined) > 1:
                    yield _linked(joined[:-1], joined[1:])
                held = joined[-1:].clone()
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RLError(
                f"{_OWNER} cannot read {file}: {error}. It takes complete Parquet files of LeRobot"
            ) from error
    if held is not None:
        ended = held.clone()
        ended["episode"] = held["episode"] + 1
        yield _linked(held, ended)


def _part(table: Any, features: Mapping[str, Any]) -> TensorDict:
    rows = TensorDict({}, batch_size=[table.num_rows])
    for name in table.schema.names:
        feature = features.get(name)
        if feature is None or name == "index" or feature["dtype"] in ("video", "string"):
            continue
        rows.set(_key(name), _values(name, table.column(name), feature))
    for name in ("episode", "action"):
        if name not in rows.keys():
            raise ValueError(f"it has no column of {name}")
    return rows


def _key(name: str) -> Any:
    if name.startswith(_IMAGES):
        return ("observation", "image", name.removeprefix(_IMAGES))
    return _KEYS.get(name) or unwrap(tuple(name.split(".")))


def _values(name: str, column: Any, feature: Mapping[str, Any]) -> Tensor:
    if feature["dtype"] == "image":
        return decoded(_OWNER, "lerobot", name, column.field("bytes").to_pylist())
    shape = () if list(feature["shape"]) == [1] and not _nested(column) else tuple(feature["shape"])
    flat: Any = column
    while _nested(flat):
        flat = flat.flatten()
    array = flat.to_numpy(zero_copy_only=False).astype(np.dtype(feature["dtype"]))
    return torch.from_numpy(array.reshape(len(column), *shape))


def _nested(column: Any) -> bool:
    return hasattr(column.type, "value_type")


def _linked(rows: TensorDict, after: TensorDict) -> TensorDictBase:
    """Return steps with what follows them; `after` has the next step of each."""
    last = (rows["episode"] != after["episode"]).unsqueeze(-1)
    made = rows.exclude("next").clone()
    given: Any = rows.get("next", None)
    following = TensorDict({}, batch_size=rows.batch_size)
    for key in rows.keys(include_nested=True, leaves_only=True):
        if (key if isinstance(key, str) else key[0]) == "observation":
            own, later = rows[key], after[key]
            following[key] = torch.where(last.reshape(-1, *[1] * (own.ndim - 1)), own, later)
    done = torch.zeros_like(last)
    if given is not None:
        for key, value in given.items():
            if key == "reward":
                following[key] = value.float().reshape(-1, 1)
            elif key == "done":
                done = value.bool().reshape(-1, 1)
            else:
                following[key] = value
    following["terminated"], following["truncated"] = done & last, last & ~done
    following["done"] = last
    return made.set("next", following)
