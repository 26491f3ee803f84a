"""Loggers of experiment trackers: Weights & Biases, MLflow and Trackio. Each needs the extra of its name."""

from __future__ import annotations

import json
import time
from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from rl.core.errors import MissingExtraError, RLError
from rl.trainers._storage import first_line, write_atomic
from rl.trainers.loggers import Logger, histogram_of, plain_settings, video_file

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["MLflowLogger", "TrackioLogger", "WandbLogger"]


#: seconds after which metrics that wait are written; a transaction of SQLite takes milliseconds
FLUSH_SECONDS = 5.0

#: metrics that MLflow takes at a time
MOST_METRICS = 1000


class _Tracker(Logger):
    """Logger of a library, whose run has an id that the run folder keeps in ``trackers.json``."""

    library = ""
    remedy = ""

    @classmethod
    def check_installed(cls) -> None:
        """Raise if the library is missing.

        Raises:
            MissingExtraError: If so.
        """
        if find_spec(cls.library) is None:
            raise MissingExtraError(
                f"{cls.__name__} needs {cls.library}, which is not installed: pip install 'rl-trainers[{cls.library}]'"
            )

    def __init__(self, folder: str | Path, *, resume_step: int | None = None) -> None:
        super().__init__(folder, resume_step=resume_step)
        self.check_installed()
        whole = self.folder.absolute()
        #: the folder's name; with the one above of the runs of several seeds
        self.name = f"{whole.parent.name}-{whole.name}" if whole.name.startswith("seed-") else whole.name

    @contextmanager
    def _beginning(self) -> Generator[None]:
        """Report in one line why the library begins no run, as for want of a key or of a server.

        Raises:
            RLError: If it raises anything but a `TypeError`, which is about the arguments.
        """
        try:
            yield
        except TypeError:
            raise
        except Exception as error:
            raise RLError(f"{self.library} begins no run: {first_line(error)}; {self.remedy}") from error

    def _run_id(self, make: Callable[[], str]) -> str:
        """Return the id of the run that is resumed, or that of a new one."""
        path = self.folder / "trackers.json"
        known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        if self.resume_step is None or self.library not in known:
            known[self.library] = make()
            write_atomic(path, json.dumps(known, indent=2) + "\n")
        return known[self.library]

    def log_scalar(self, name: str, value: float, step: int | None = None) -> None:
        """Record one number."""
        self._log({name: float(value)}, step)

    def log_scalars(self, values: Mapping[str, float], step: int) -> None:
        """Record a row of numbers at once; NaN is left out."""
        self._log({name: float(value) for name, value in values.items() if value == value}, step)  # noqa: PLR0124

    @abstractmethod
    def _log(self, values: Mapping[str, Any], step: int | None) -> None:
        """Record values, with the step if there is one."""


class _MediaTracker(_Tracker):
    """Tracker whose library has classes of media, and whose run ends with `finish`."""

    experiment: Any
    media: Any

    def log_histogram(self, name: str, data: Any, *, step: int | None = None, bins: Any = 64) -> None:
        """Record a histogram."""
        self._log({name: self.media.Histogram(np_histogram=histogram_of(data, bins))}, step)

    def log_video(self, name: str, video: Tensor, step: int | None = None, **kwargs: Any) -> None:
        """Record pictures as an ``.mp4``, which is also in ``videos/`` of the folder."""
        self.log_video_file(name, video_file(self.folder, name, video, step, kwargs.get("fps", 30)), step)

    def log_video_file(self, name: str, path: Path, step: int | None = None) -> None:
        """Record an ``.mp4``."""
        self._log({name: self.media.Video(str(path), format="mp4")}, step)

    def close(self) -> None:
        """End the run and write what is left. May be called twice."""
        self.experiment.finish()


class WandbLogger(_MediaTracker):
    """Weights & Biases, by frames. Without a network, ``WANDB_MODE=offline`` writes below ``wandb/`` of the folder.

    Args:
        folder: The run folder.
        resume_step: None for a new run; else the run of the same id continues.
        project: Project; None for that of ``WANDB_PROJECT``, or else that of wandb.
        options: Further arguments of ``wandb.init``, such as ``entity``, ``group``, ``tags`` or ``mode``.

    Attributes:
        experiment: The ``wandb.Run``.

    Raises:
        MissingExtraError: If wandb is not installed.
        RLError: If wandb begins no run, as without a key.
    """

    library = "wandb"
    remedy = "`wandb login` signs in, and WANDB_MODE=offline needs no account"

    def __init__(
        self, folder: str | Path, *, resume_step: int | None = None, project: str | None = None, **options: Any
    ) -> None:
        super().__init__(folder, resume_step=resume_step)
        import wandb  # pyright: ignore[reportMissingImports]

        self.media: Any = wandb
        self.folder.mkdir(parents=True, exist_ok=True)
        usual: dict[str, Any] = {"name": self.name, "reinit": "create_new", "resume": "allow", "dir": str(self.folder)}
        usual["settings"] = {"console": "off"}  # the live display is no log
        usual |= {"project": project, "id": self._run_id(lambda: uuid4().hex[:8])}
        with self._beginning():
            self.experiment: Any = wandb.init(**{**usual, **options})
        self.experiment.define_metric("frames")
        self.experiment.define_metric("*", step_metric="frames")

    def _log(self, values: Mapping[str, Any], step: int | None) -> None:
        self.experiment.log({**values} if step is None else {**values, "frames": step})

    def log_str(self, name: str, value: str, step: int | None = None) -> None:
        """Record a text, as the only cell of a table."""
        self._log({name: self.media.Table(columns=["text"], data=[[value]])}, step)

    def log_hparams(self, cfg: Mapping[str, Any]) -> None:
        """Record the settings as the config of the run."""
        self.experiment.config.update(plain_settings(cfg), allow_val_change=True)


class MLflowLogger(_Tracker):
    """MLflow, by frames, every few seconds. Without a server, runs of one folder share a SQLite file, ``mlflow.db``.

    Args:
        folder: The run folder.
        resume_step: None for a new run; else the run of the same id continues.
        tracking_uri: Server or database; None for that of ``MLFLOW_TRACKING_URI``, or else ``mlflow.db`` in the folder
            above.
        project: Experiment; None for that of ``MLFLOW_EXPERIMENT_NAME``, or else ``rl``.

    Attributes:
        experiment: The ``mlflow.MlflowClient``.

    Raises:
        MissingExtraError: If mlflow is not installed.
        RLError: If mlflow begins no run, as without its server.
    """

    library = "mlflow"
    remedy = "start the server that MLFLOW_TRACKING_URI or tracking_uri names, or name another one"

    def __init__(
        self,
        folder: str | Path,
        *,
        resume_step: int | None = None,
        tracking_uri: str | None = None,
        project: str | None = None,
    ) -> None:
        super().__init__(folder, resume_step=resume_step)
        from mlflow import MlflowClient, entities  # pyright: ignore[reportMissingImports]
        from mlflow.environment_variables import (  # pyright: ignore[reportMissingImports]
            MLFLOW_EXPERIMENT_NAME,
            MLFLOW_TRACKING_URI,
        )

        self._entities: Any = entities
        self.folder.mkdir(parents=True, exist_ok=True)
        above = self.folder.absolute().parent
        uri = tracking_uri or MLFLOW_TRACKING_URI.get() or f"sqlite:///{above / 'mlflow.db'}"
        project = project or MLFLOW_EXPERIMENT_NAME.get() or "rl"
        place = (above / "mlartifacts").as_uri() if uri.startswith("sqlite:") else None
        with self._beginning():
            client: Any = MlflowClient(tracking_uri=uri)
            found = client.get_experiment_by_name(project)
            group = found.experiment_id if found else client.create_experiment(project, artifact_location=place)
            self._id = self._run_id(lambda: client.create_run(group, run_name=self.name).info.run_id)
            client.update_run(self._id, status="RUNNING")
        self.experiment: Any = client
        self._waiting: list[Any] = []
        self._sent = time.monotonic()

    def _log(self, values: Mapping[str, Any], step: int | None) -> None:
        now = int(time.time() * 1000)
        self._waiting += [self._entities.Metric(name, value, now, step or 0) for name, value in values.items()]
        if time.monotonic() - self._sent > FLUSH_SECONDS:
            self._flush()

    def _flush(self) -> None:
        """Write the metrics that wait, at most as many at a time as MLflow takes."""
        while self._waiting:
            self.experiment.log_batch(self._id, metrics=self._waiting[:MOST_METRICS])
            del self._waiting[:MOST_METRICS]
        self._sent = time.monotonic()

    def log_str(self, name: str, value: str, step: int | None = None) -> None:
        """Record a text, as an artifact."""
        self.experiment.log_text(self._id, value, f"texts/{name}{'' if step is None else f'-{step}'}.txt")

    def log_hparams(self, cfg: Mapping[str, Any]) -> None:
        """Record the settings as parameters; those of a resumed run are kept as they were."""
        known = self.experiment.get_run(self._id).data.params
        new = {name: value for name, value in plain_settings(cfg).items() if name not in known}
        params = [self._entities.Param(name, str(value)) for name, value in new.items()]
        self.experiment.log_batch(self._id, params=params)

    def log_histogram(self, name: str, data: Any, *, step: int | None = None, bins: Any = 64) -> None:
        """Record a histogram, as an artifact with ``counts`` and ``edges``."""
        counts, edges = (part.tolist() for part in histogram_of(data, bins))
        path = f"histograms/{name}{'' if step is None else f'-{step}'}.json"
        self.experiment.log_dict(self._id, {"counts": counts, "edges": edges}, path)

    def log_video(self, name: str, video: Tensor, step: int | None = None, **kwargs: Any) -> None:
        """Record pictures as an ``.mp4``, as an artifact, which is also in ``videos/`` of the folder."""
        self.log_video_file(name, video_file(self.folder, name, video, step, kwargs.get("fps", 30)), step)

    def log_video_file(self, name: str, path: Path, step: int | None = None) -> None:  # noqa: ARG002 - of the interface
        """Record an ``.mp4``, as an artifact."""
        self.experiment.log_artifact(self._id, str(path), "videos")

    def close(self) -> None:
        """Write what waits, and end the run. May be called twice."""
        self._flush()
        self.experiment.set_terminated(self._id)


class TrackioLogger(_MediaTracker):
    """Trackio, by frames, in its folder on this machine (``TRACKIO_DIR``); ``trackio show`` opens its dashboard.

    Args:
        folder: The run folder.
        resume_step: None for a new run; else the run of the same id continues.
        project: Project.
        options: Further arguments of ``trackio.init``, such as ``group`` or ``space_id``.

    Attributes:
        experiment: The ``trackio.Run``.

    Raises:
        MissingExtraError: If trackio is not installed.
        RLError: If trackio begins no run, as without the network for ``space_id``.
    """

    library = "trackio"
    remedy = "without space_id it needs no network"

    def __init__(
        self, folder: str | Path, *, resume_step: int | None = None, project: str = "rl", **options: Any
    ) -> None:
        super().__init__(folder, resume_step=resume_step)
        import trackio  # pyright: ignore[reportMissingImports]

        self.media: Any = trackio
        self.folder.mkdir(parents=True, exist_ok=True)
        name = self._run_id(lambda: f"{self.name}-{uuid4().hex[:8]}")  # a run is found by its name
        usual = {"project": project, "name": name, "resume": "allow"}
        with self._beginning():
            self.experiment: Any = trackio.init(**{**usual, **options})

    def _log(self, values: Mapping[str, Any], step: int | None) -> None:
        self.experiment.log({**values}, step)

    def log_str(self, name: str, value: str, step: int | None = None) -> None:
        """Record a text."""
        self._log({name: self.media.Markdown(value)}, step)

    def log_hparams(self, cfg: Mapping[str, Any]) -> None:
        """Record the settings as the config of the run."""
        self.experiment.config.update(plain_settings(cfg))

    def close(self) -> None:
        """End the run and write what is left. May be called twice."""
        if self.media.context_vars.current_run.get() is self.experiment:
            self.media.finish()  # else trackio ends it once more when Python exits, and says so
        else:
            self.experiment.finish()
