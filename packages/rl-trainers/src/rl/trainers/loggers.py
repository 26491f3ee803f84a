"""Loggers of metrics."""

from __future__ import annotations

import csv
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO
from uuid import uuid4

import yaml

from rl.core.errors import ArgumentError, CheckpointError, RLError
from rl.trainers._named import find, find_call
from rl.trainers._storage import atomic_path, video_library, write_atomic

if TYPE_CHECKING:
    from tensordict import TensorDictBase
    from torch import Tensor

    from rl.core import interfaces

__all__ = [
    "CSVLogger",
    "Logger",
    "LoggerSet",
    "TensorBoardLogger",
    "generate_exp_name",
    "get_logger",
    "histogram_of",
    "plain_settings",
    "read_metrics",
    "video_file",
]


class Logger(ABC):
    """Base of loggers, for recipes and for loops of one's own.

    A subclass implements `log_scalar`, and what else it can record. Recipes call `log_scalars` with each row of metrics
    and `close`, the members of the protocol `rl.core.interfaces.Logger`.

    Args:
        folder: Folder of the run.
        resume_step: Frames from which a run continues; None for a new run.

    Example:
        >>> import torch
        >>> class Printed(Logger):
        ...     def log_scalar(self, name, value, step=None):
        ...         print(step, name, value)
        >>> logger = Printed(Path("."))
        >>> logger.log_scalars({"train/loss_actor": 0.5, "eval/return_mean": float("nan")}, step=10)
        10 train/loss_actor 0.5
        >>> logger.log_metrics({"kl": torch.tensor(0.25)}, step=20)
        20 kl 0.25
        {'kl': 0.25}
    """

    def __init__(self, folder: str | Path, *, resume_step: int | None = None) -> None:
        self.folder, self.resume_step = Path(folder), resume_step

    @classmethod
    def check_installed(cls) -> None:
        """Raise if the library that the logger needs is missing; a run calls it before it writes anything.

        Raises:
            MissingExtraError: If so.
        """
        return

    @abstractmethod
    def log_scalar(self, name: str, value: float, step: int | None = None) -> None:
        """Record one number.

        Args:
            name: Name of the metric.
            value: Number to record.
            step: Frames so far.
        """

    def log_scalars(self, values: Mapping[str, float], step: int) -> None:
        """Record a row of numbers; NaN is left out."""
        for name, value in values.items():
            if not math.isnan(value):
                self.log_scalar(name, value, step)

    def log_metrics(
        self, metrics: Mapping[str, Any] | TensorDictBase, step: int | None = None, *, keys_sep: str = "/"
    ) -> dict[str, float]:
        """Record numbers and scalar tensors, and return them as numbers.

        Args:
            metrics: Numbers by name, or a TensorDict.
            step: Frames so far.
            keys_sep: Separator of the parts of nested keys.
        """
        flatten = getattr(metrics, "flatten_keys", None)  # of a TensorDict, without importing it
        flat: Any = metrics if flatten is None else flatten(keys_sep)
        numbers = {str(name): float(value) for name, value in flat.items()}
        for name, value in numbers.items():
            self.log_scalar(name, value, step)
        return numbers

    def log_str(self, name: str, value: str, step: int | None = None) -> None:  # noqa: ARG002 - of the interface
        """Record a text.

        Raises:
            RLError: If the logger records none.
        """
        self._cannot("texts", "log_str")

    def log_hparams(self, cfg: Mapping[str, Any]) -> None:  # noqa: ARG002 - of the interface
        """Record the settings of a run.

        Raises:
            RLError: If the logger records none.
        """
        self._cannot("settings", "log_hparams")

    def log_video(self, name: str, video: Tensor, step: int | None = None, **kwargs: Any) -> None:  # noqa: ARG002 - of the interface
        """Record frames, uint8 ``[T, C, H, W]`` or ``[N, T, C, H, W]``; `kwargs` has ``fps``, frames per second.

        Raises:
            RLError: If the logger records none.
        """
        self._cannot("videos", "log_video")

    def log_video_file(self, name: str, path: Path, step: int | None = None) -> None:  # noqa: B027 - of the interface
        """Record a video that is in the folder already; does nothing in loggers whose place is the folder.

        Args:
            name: Name of the video.
            path: The file.
            step: Frames so far.
        """

    def log_histogram(self, name: str, data: Any, *, step: int | None = None, bins: Any = 64) -> None:  # noqa: ARG002 - of the interface
        """Record the distribution of numbers.

        Args:
            name: Name of the distribution.
            data: Numbers: a tensor, an array or a list, of any shape.
            step: Frames so far.
            bins: Number of bins, or their edges, as of `numpy.histogram`.

        Raises:
            RLError: If the logger records none.
        """
        self._cannot("histograms", "log_histogram")

    def close(self) -> None:  # noqa: B027 - nothing to flush is usual
        """Flush. May be called twice."""

    def _cannot(self, what: str, method: str) -> NoReturn:
        raise RLError(f"{type(self).__name__} records no {what}: override {method}, or use another logger beside it")


class CSVLogger(Logger):
    r"""``metrics.csv``: one line for each row of metrics, first column ``frames``.

    The first row decides the columns; a value that a later row lacks stays empty. Numbers of `log_scalar` are lines
    ``step,value`` of ``scalars/NAME.csv``, texts ``texts/NAME-STEP.txt``, settings ``hparams.yaml``, histograms lines
    ``low,high,count`` of ``histograms/NAME-STEP.csv``, and videos ``videos/NAME-STEP.mp4``.

    Args:
        folder: The run folder.
        resume_step: None for a new run; else lines of later frames are dropped and the rest is continued.
        file: Name of the file.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     logger = CSVLogger(Path(folder))
        ...     logger.log_scalars({"train/loss_critic": 0.5}, step=10)
        ...     logger.close()
        ...     (Path(folder) / "metrics.csv").read_text()
        'frames,train/loss_critic\n10,0.5\n'
    """

    def __init__(self, folder: Path, *, resume_step: int | None = None, file: str = "metrics.csv") -> None:
        super().__init__(folder, resume_step=resume_step)
        self.path = self.folder / file
        self._columns: list[str] = []
        self._file: TextIO | None = None
        if resume_step is not None and self.path.is_file():
            self._columns = _truncate(self.path, resume_step)
        if resume_step is not None:
            for path in sorted((self.folder / "scalars").rglob("*.csv")):
                _truncate_scalars(path, resume_step)

    def log_scalars(self, values: Mapping[str, float], step: int) -> None:
        """Append a line.

        Raises:
            CheckpointError: If a value has no column: the file was begun by another recipe or version.
        """
        columns = self._columns or ["frames", *values]
        unknown = values.keys() - set(columns)
        if unknown:
            raise CheckpointError(
                f"{self.path} has no column for {sorted(unknown)}: it was begun with other metrics; train"
                " into a new folder"
            )
        file = self._file or self._open(columns)
        cells = [str(step), *(_cell(values.get(name, math.nan)) for name in columns[1:])]
        file.write(",".join(cells) + "\n")
        file.flush()

    def log_scalar(self, name: str, value: float, step: int | None = None) -> None:
        """Append a line to the file of one metric."""
        path = _file_of(self.folder, "scalars", name, None, ".csv")
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{'' if step is None else step},{_cell(float(value))}\n")

    def log_str(self, name: str, value: str, step: int | None = None) -> None:
        """Write a text into a file of its own."""
        write_atomic(_file_of(self.folder, "texts", name, step, ".txt"), value)

    def log_hparams(self, cfg: Mapping[str, Any]) -> None:
        """Write the settings into one file."""
        write_atomic(_file_of(self.folder, "", "hparams", None, ".yaml"), _yaml(cfg))

    def log_video(self, name: str, video: Tensor, step: int | None = None, **kwargs: Any) -> None:
        """Write frames as a video; of several videos side by side.

        Raises:
            MissingExtraError: If imageio is not installed.
        """
        video_file(self.folder, name, video, step, kwargs.get("fps", 30))

    def log_histogram(self, name: str, data: Any, *, step: int | None = None, bins: Any = 64) -> None:
        """Write the bins of a histogram into a file of its own."""
        counts, edges = histogram_of(data, bins)
        lines = zip(edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True)
        text = "low,high,count\n" + "".join(f"{low},{high},{count}\n" for low, high, count in lines)
        write_atomic(_file_of(self.folder, "histograms", name, step, ".csv"), text)

    def _open(self, columns: list[str]) -> TextIO:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = file = self.path.open("a", encoding="utf-8")
        if not self._columns:
            file.write(",".join(columns) + "\n")
        self._columns = columns
        return file

    def close(self) -> None:
        """Close the file. May be called twice."""
        if self._file is not None:
            self._file.close()
            self._file = None


class TensorBoardLogger(Logger):
    """TensorBoard events in ``tensorboard/`` of the run folder.

    Args:
        folder: The run folder.
        resume_step: None for a new run; else TensorBoard hides what was logged at later frames.
    """

    def __init__(self, folder: Path, *, resume_step: int | None = None) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        super().__init__(folder, resume_step=resume_step)
        purge = None if resume_step is None else resume_step + 1
        self._writer = SummaryWriter(str(self.folder / "tensorboard"), purge_step=purge)

    def log_scalar(self, name: str, value: float, step: int | None = None) -> None:
        """Write one event."""
        self._writer.add_scalar(name, value, step)

    def log_scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write a row as one event, in a sixth of the time of an event for each number; NaN is left out."""
        from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]

        row = [Summary.Value(tag=name, simple_value=value) for name, value in values.items() if not math.isnan(value)]
        self._writer._get_file_writer().add_summary(Summary(value=row), step)  # noqa: SLF001  opened again after close

    def log_str(self, name: str, value: str, step: int | None = None) -> None:
        """Write a text."""
        self._writer.add_text(name, value, step)

    def log_hparams(self, cfg: Mapping[str, Any]) -> None:
        """Write the settings as a text, ``hparams``."""
        self._writer.add_text("hparams", f"```yaml\n{_yaml(cfg)}```", 0)

    def log_video(self, name: str, video: Tensor, step: int | None = None, **kwargs: Any) -> None:
        """Write pictures as a moving one; needs moviepy."""
        batch = video if video.ndim == BATCH_OF_VIDEOS else video.unsqueeze(0)
        self._writer.add_video(name, batch, step, **kwargs)

    def log_histogram(self, name: str, data: Any, *, step: int | None = None, bins: Any = 64) -> None:
        """Write a histogram."""
        self._writer.add_histogram(name, _numbers(data), step, bins=bins)

    def close(self) -> None:
        """Flush. May be called twice."""
        self._writer.close()


def get_logger(logger_type: str, logger_name: str | Path, experiment_name: str = "", **options: Any) -> Any:
    r"""Create a logger by name, for a loop of one's own.

    Args:
        logger_type: A component of kind ``logger``, such as ``csv``, ``tensorboard``, ``wandb``, ``mlflow`` or
            ``trackio``, or ``module:attribute``; empty for none.
        logger_name: Folder of the runs.
        experiment_name: Name of the run's folder in it; see `generate_exp_name`.
        options: Further arguments of the logger, such as ``resume_step=1000`` or ``project="maze"``.

    Returns:
        The logger; None for an empty `logger_type`.

    Raises:
        UnknownComponentError: If there is no such logger.
        MissingExtraError: If it needs a library that is not installed.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     logger = get_logger("csv", folder, "first")
        ...     logger.log_scalar("loss", 0.5, step=10)
        ...     (Path(folder) / "first" / "scalars" / "loss.csv").read_text()
        '10,0.5\n'
    """
    if not logger_type:
        return None
    return _kind(find("logger", logger_type))(Path(logger_name) / experiment_name, **options)


def generate_exp_name(model_name: str, experiment_name: str) -> str:
    """Return a name that no other run has: both names, random letters, and the time.

    Example:
        >>> generate_exp_name("ppo", "maze")  # doctest: +SKIP
        'ppo_maze_3f2a91bc_26_11_27-14_30_05'
    """
    time = datetime.now().strftime("%y_%m_%d-%H_%M_%S")
    return f"{model_name}_{experiment_name}_{uuid4().hex[:8]}_{time}"


def _kind(kind: Any) -> Any:
    """Return the class of a logger, whose library is installed."""
    getattr(kind, "check_installed", lambda: None)()
    return kind


def _numbers(data: Any) -> Any:
    import numpy as np

    return np.asarray(data.detach().cpu() if hasattr(data, "detach") else data, dtype=float).ravel()


def histogram_of(data: Any, bins: Any = 64) -> tuple[Any, Any]:
    """Return counts and edges of the bins, as `numpy.histogram` does, of a tensor, an array or a list.

    Example:
        >>> counts, edges = histogram_of([0.0, 1.0, 1.0, 2.0], bins=2)
        >>> counts.tolist(), edges.tolist()
        ([1, 3], [0.0, 1.0, 2.0])
    """
    import numpy as np

    return np.histogram(_numbers(data), bins=bins)


def _file_of(folder: Path, kind: str, name: str, step: int | None, ending: str) -> Path:
    path = folder / kind / f"{name}{'' if step is None else f'-{step}'}{ending}"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def video_file(folder: Path, name: str, video: Tensor, step: int | None = None, fps: float = 30) -> Path:
    """Write pictures as ``videos/NAME-STEP.mp4`` of a folder, which is replaced; several videos stand side by side.

    Args:
        folder: The run folder.
        name: Name of the video.
        video: Pictures, uint8 ``[T, C, H, W]`` or ``[N, T, C, H, W]``.
        step: Frames so far.
        fps: Frames per second.

    Returns:
        The file.

    Raises:
        MissingExtraError: If imageio is not installed.
    """
    imageio = video_library()
    path = _file_of(folder, "videos", name, step, ".mp4")
    with atomic_path(path) as made:
        imageio.imwrite(made, pictures_of(video), fps=fps, macro_block_size=2)
    return path


#: dimensions of several videos
BATCH_OF_VIDEOS = 5


def pictures_of(video: Tensor) -> Any:
    """Frames ``[T, H, W, C]`` of a video ``[T, C, H, W]``, or of several side by side, as an array.

    Example:
        >>> import torch
        >>> pictures_of(torch.zeros(2, 7, 3, 4, 6, dtype=torch.uint8)).shape
        (7, 4, 12, 3)
    """
    if video.ndim == BATCH_OF_VIDEOS:
        video = video.permute(1, 2, 3, 0, 4).flatten(-2)
    return video.permute(0, 2, 3, 1).numpy(force=True)


def read_metrics(path: Path) -> dict[str, list[float]]:
    """Read the columns of a ``metrics.csv``; an empty cell is NaN. Names of rl-trainers 0.3 become the present ones.

    Raises:
        CheckpointError: If the file cannot be read or has no header, or a cell is not a number.
    """
    try:
        with Path(path).open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file, restval="")
            _check_header(path, reader.fieldnames or [])
            rows = list(reader)
        names = list(rows[0]) if rows else []
        values = [[float(row[name]) if row[name] else math.nan for row in rows] for name in names]
        return dict(zip(_present(names), values, strict=True))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}; name a run folder with metrics") from error
    except (ValueError, KeyError, TypeError, csv.Error) as error:
        raise CheckpointError(f"{path} is damaged: {error}; correct that line, or delete the file") from error


def _check_header(path: Path, columns: Sequence[str]) -> None:
    if "frames" not in columns:
        raise CheckpointError(
            f"{path} is damaged: its first line is no header with the column 'frames'; delete the file, and a resumed"
            " run begins a new one"
        )


#: present names of metrics of rl-trainers 0.3 that are not theirs with ``train/`` before
_RENAMED = {
    "return_mean": "rollout/return_mean",
    "length_mean": "rollout/length_mean",
    "episodes": "rollout/episodes",
    "eval_return_mean": "eval/return_mean",
    "seconds": "time/seconds",
    "frames_per_second": "time/fps",
    "loss": "train/loss_critic",
    "loss_policy": "train/loss_actor",
    "loss_value": "train/loss_critic",
}


def _present(columns: list[str]) -> list[str]:
    """Return the present names of the columns of a file, which may be of rl-trainers 0.3."""
    if "eval_return_mean" not in columns:
        return columns
    phases = {name: f"time/{name.removeprefix('time_')}" for name in columns if name.startswith("time_")}
    known = {"frames": "frames", **_RENAMED, **phases}
    return [known.get(name, f"train/{name}") for name in columns]


class _Settings(yaml.SafeDumper):
    """Writes what YAML has no form for, such as a path, as its text."""


_Settings.add_multi_representer(object, lambda dumper, value: dumper.represent_str(str(value)))


def plain_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as plain values; what YAML has no form for, such as a path, as its text.

    Example:
        >>> plain_settings({"out": Path("runs"), "num_cells": (64, 64)})
        {'out': 'runs', 'num_cells': [64, 64]}
    """
    return yaml.safe_load(_yaml(settings))


def _yaml(settings: Mapping[str, Any]) -> str:
    return yaml.dump(dict(settings), Dumper=_Settings, sort_keys=False)


def _cell(value: float) -> str:
    return "" if math.isnan(value) else repr(float(value)) if not float(value).is_integer() else str(int(value))


def _truncate(path: Path, step: int) -> list[str]:
    """Drop the lines after `step`, and one that was cut off; the columns that are there."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        if not lines:
            return []
        columns = lines[0].strip().split(",")
        _check_header(path, columns)
        columns = _present(columns)
        kept = [
            line
            for line in lines[1:]
            if line.endswith("\n") and line.count(",") == len(columns) - 1 and int(line.split(",")[0]) <= step
        ]
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}; correct that line, or delete the file") from error
    write_atomic(path, "".join([",".join(columns) + "\n", *kept]))
    return columns


def _truncate_scalars(path: Path, step: int) -> None:
    """Drop the lines after `step`, and one that was cut off; those without a step stay."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if line.endswith("\n") and int(line.partition(",")[0] or step) <= step]
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}; correct that line, or delete the file") from error
    if kept != lines:
        write_atomic(path, "".join(kept))


#: names of other projects for our metrics; the others keep ours
METRIC_NAMES: Mapping[str, Mapping[str, str]] = {
    "rl": {},
    "sb3": {
        "rollout/return_mean": "rollout/ep_rew_mean",
        "rollout/length_mean": "rollout/ep_len_mean",
        "eval/return_mean": "eval/mean_reward",
        "time/seconds": "time/time_elapsed",
        "train/loss_actor": "train/policy_gradient_loss",
        "train/loss_critic": "train/value_loss",
        "train/entropy": "train/entropy",
        "train/kl": "train/approx_kl",
        "train/alpha": "train/ent_coef",
        "train/epsilon": "rollout/exploration_rate",
    },
    "cleanrl": {
        "rollout/return_mean": "charts/episodic_return",
        "rollout/length_mean": "charts/episodic_length",
        "eval/return_mean": "eval/episodic_return",
        "time/fps": "charts/SPS",
        "train/learning_rate": "charts/learning_rate",
        "train/epsilon": "charts/epsilon",
        "train/loss_actor": "losses/policy_loss",
        "train/loss_critic": "losses/value_loss",
        "train/entropy": "losses/entropy",
        "train/kl": "losses/approx_kl",
        "train/clip_fraction": "losses/clipfrac",
        "train/explained_variance": "losses/explained_variance",
        "train/q_value": "losses/q_values",
        "train/alpha": "losses/alpha",
    },
}


class LoggerSet:
    """Hands each row to several loggers.

    Args:
        names: Logger components, for example csv, or ``module:attribute``, with arguments as in
            ``wandb:{project: maze}``. Nothing is written before `open`.
        metric_names: A name in `METRIC_NAMES`, by whose table metrics are renamed for all but `CSVLogger`, from whose
            file plots and resumed runs read.

    Raises:
        UnknownComponentError: If there is no such logger.
        MissingExtraError: If one needs a library that is not installed.
        ArgumentError: If a logger does not take its arguments.
    """

    def __init__(self, names: Sequence[str], metric_names: str = "rl") -> None:
        found = [find_call("logger", name) for name in names]
        self._kinds = [(_kind(kind), options) for kind, options in found]
        self._names = METRIC_NAMES[metric_names]
        self._loggers: list[interfaces.Logger] = []

    def open(self, folder: Path, *, resume_step: int | None = None, settings: Mapping[str, Any] | None = None) -> None:
        """Begin to write.

        Args:
            folder: The run folder.
            resume_step: Frames from which a resumed run continues; None for a new run.
            settings: Settings of the run, which loggers with `Logger.log_hparams` get; not `CSVLogger`, beside whose
                file stands ``config.yaml``.
        """
        for kind, options in self._kinds:
            try:
                logger = kind(folder, resume_step=resume_step, **options)
            except TypeError as error:
                raise ArgumentError(
                    f"the logger {kind.__name__} was not created: {error}; see its arguments"
                ) from error
            self._loggers.append(logger)
            own = isinstance(logger, Logger) and type(logger).log_hparams is not Logger.log_hparams
            if settings is not None and own and not isinstance(logger, CSVLogger):
                logger.log_hparams(settings)

    def log_scalars(self, values: Mapping[str, float], step: int) -> None:
        """Record values at `step` everywhere."""
        renamed = {self._names.get(name, name): value for name, value in values.items()} if self._names else values
        for logger in self._loggers:
            logger.log_scalars(values if isinstance(logger, CSVLogger) else renamed, step)

    def log_video_file(self, name: str, path: Path, step: int) -> None:
        """Give a video that is in the run folder to the loggers that are elsewhere."""
        for logger in self._loggers:
            if isinstance(logger, Logger):
                logger.log_video_file(name, path, step)

    def log_scalar(self, name: str, value: float, step: int) -> None:
        """Record one value everywhere, beside the rows."""
        for logger in self._loggers:
            if isinstance(logger, Logger):
                logger.log_scalar(name, value, step)
            else:  # of a plugin, which takes rows alone
                logger.log_scalars({name: value}, step)

    def close(self) -> None:
        """Close all. May be called twice."""
        for logger in self._loggers:
            logger.close()
