"""The folder of one run; existing files are never overwritten."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import shutil
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from rl.core.errors import CheckpointError, RLError, SpecError
from rl.trainers._config.config import RunConfig
from rl.trainers._config.recipe import Recipe
from rl.trainers._storage.files import remove_temporary, write_atomic
from rl.trainers._storage.process import this_process

__all__ = ["RunFolder", "check_name", "config_yaml", "file_name", "new_folder_of_runs", "runs_in", "settings_of"]


class RunFolder:
    """Paths inside a run folder.

    Args:
        path: the folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.yaml"
        self.summary = self.path / "summary.json"
        self.history = self.path / "history.json"
        self.metrics = self.path / "metrics.csv"
        self.episodes = self.path / "episodes.csv"
        self.curve = self.path / "learning_curve.png"
        self.best = self.path / "checkpoints" / "best.safetensors"
        self.last = self.path / "checkpoints" / "last.safetensors"

    @contextmanager
    def locked(self) -> Generator[None]:
        """Keep other processes from training in this folder; remove what a killed one left half written.

        Raises:
            CheckpointError: if another process trains in it.
        """
        from filelock import FileLock, Timeout

        lock = FileLock(self.path / ".lock", timeout=0)
        try:
            lock.acquire()
        except Timeout as error:
            raise CheckpointError(
                f"another process is training in {self.path}; wait for it or stop it, then resume"
            ) from error
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be locked: {error}; make it writable") from error
        try:
            for path in (
                self.config,
                self.summary,
                self.history,
                self.metrics,
                self.episodes,
                self.curve,
                self.best,
                self.last,
            ):
                remove_temporary(path)
            yield
        finally:
            lock.release()

    def remove(self) -> None:
        """Delete the folder of a run that has not begun."""
        shutil.rmtree(self.path, ignore_errors=True)

    def check_present(self) -> None:
        """Raise if the folder was deleted or renamed during its run.

        Raises:
            CheckpointError: if so.
        """
        if not self.config.is_file():
            raise CheckpointError(
                f"the run folder {self.path} has disappeared: it was deleted or renamed during the run. Nothing more"
                " can be saved; train again"
            )

    @classmethod
    def create(cls, path: str | Path | None, recipe: Recipe, config: RunConfig) -> RunFolder:
        """A new folder that holds the config, and nothing else yet.

        Args:
            path: where; ``runs/RECIPE-ENV-SEED-COUNTER`` if None.
            recipe: the recipe.
            config: its settings.

        Raises:
            RLError: if the folder is there already, or cannot be made.
            SpecError: if a setting cannot be written as YAML.
        """
        text = config_yaml(recipe.reference, config)
        candidates = _names(recipe.name, config, config.seed) if path is None else [Path(path)]
        folder = next((cls(name) for name in candidates if _made(name)), None)
        if folder is None:
            raise RLError(
                f"the run folder {path} exists already and is not overwritten; name another one with"
                f" --out, or continue the run in it with --resume {path}"
            )
        write_atomic(folder.config, text)
        return folder

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """The folder of an earlier run.

        Raises:
            CheckpointError: if there is no run in it.
        """
        folder = cls(path)
        if not folder.config.is_file():
            raise CheckpointError(
                f"{folder.path} is not a run folder: it has no config.yaml; name the folder that `rl train`"
                " printed, for example runs/ppo-CartPole-v1-0-1"
            )
        return folder

    def read_config(self) -> dict[str, Any]:
        """``config.yaml`` as a dict: ``recipe`` and the settings.

        Raises:
            CheckpointError: if it cannot be read.
        """
        try:
            values = yaml.safe_load(self.config.read_text(encoding="utf-8"))
        except OSError as error:
            raise CheckpointError(f"{self.config} cannot be read: {error.strerror}; change its permissions") from error
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
            raise CheckpointError(
                f"{self.config} is damaged: {' '.join(str(error).split())}; put back what it held"
            ) from error
        if not isinstance(values, dict) or "recipe" not in values:
            raise CheckpointError(f"{self.config} is damaged: it names no recipe; add the line 'recipe: ppo'")
        if "updates_per_batch" in values:  # dqn of rl-trainers 0.3
            values["updates_per_step"] = values.pop("updates_per_batch") / values.get("frames_per_batch", 64)
        return values

    def update_config(self, text: str) -> None:
        """Replace ``config.yaml``: a resumed run may last longer than it was meant to."""
        write_atomic(self.config, text)

    def read_summary(self) -> dict[str, Any] | None:
        """``summary.json``; None if the run is not complete.

        Raises:
            CheckpointError: if it cannot be read.
        """
        if not self.summary.is_file():
            return None
        try:
            return json.loads(self.summary.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self.summary} is damaged: {error}; delete it, and resume the run") from error

    def write_summary(self, values: Mapping[str, Any]) -> None:
        """Write ``summary.json``."""
        write_atomic(self.summary, json.dumps(values, indent=2) + "\n")

    def add_to_history(self, frames: int) -> None:
        """Record the start of this process in ``history.json``.

        Args:
            frames: that are done already.

        Raises:
            CheckpointError: if the file is damaged.
        """
        try:
            before = json.loads(self.history.read_text(encoding="utf-8")) if self.history.is_file() else []
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self.history} is damaged: {error}; delete it, and resume the run") from error
        write_atomic(self.history, json.dumps([*before, {"frames": frames, **this_process()}], indent=2) + "\n")


def check_name(out: str | Path) -> None:
    """Raise unless `out` can be the name of a folder and stand in files of text.

    Raises:
        RLError: if not.
    """
    text = os.fspath(out)
    if not text.strip():
        raise RLError("the run folder has an empty name; name one with --out, or leave --out out")
    if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
        raise RLError(f"the run folder {text!a} has a byte that is no text; name another one with --out")


def runs_in(path: str | Path) -> list[RunFolder]:
    """The run in a folder, or those of several seeds in the order of the seeds.

    Raises:
        CheckpointError: if there is no run in it.
    """
    whole = RunFolder(path)
    found = [RunFolder(one) for one in whole.path.glob("seed-*")] if not whole.config.is_file() else []
    found = [run for run in found if run.config.is_file() and run.path.name[len("seed-") :].isdecimal()]
    if not found:
        return [RunFolder.open(path)]
    return sorted(found, key=lambda run: int(run.path.name[len("seed-") :]))


def config_yaml(recipe: str, config: RunConfig) -> str:
    """A config as ``config.yaml`` holds it and ``--config`` reads it.

    Example:
        >>> from rl.trainers.recipes.ppo._config import PPOConfig
        >>> print(config_yaml("ppo", PPOConfig()).splitlines()[0])
        recipe: ppo

    Raises:
        SpecError: if a setting cannot be written as YAML.
    """
    try:
        return yaml.safe_dump(settings_of(recipe, config), sort_keys=False, default_flow_style=None)
    except yaml.YAMLError as error:
        raise SpecError(
            f"{type(config).__name__} holds {' '.join(str(error).split())}; use numbers, strings, lists and mappings"
        ) from error


def settings_of(recipe: str, config: RunConfig) -> dict[str, Any]:
    """Recipe and settings as plain containers, with lists in place of tuples."""
    values: dict[str, Any] = {"recipe": recipe}
    for name, value in dataclasses.asdict(config).items():
        plain = str(value) if isinstance(value, str) else value  # an environment may be given as an object
        values[name] = list(plain) if isinstance(plain, tuple) else plain
    return values


def new_folder_of_runs(recipe: str, config: RunConfig) -> Path:
    """A new folder ``runs/RECIPE-ENV-seeds-COUNTER``, for runs that differ in their seed.

    Raises:
        RLError: if it cannot be made.
    """
    return next(path for path in _names(recipe, config, "seeds") if _made(path))


def file_name(text: str) -> str:
    """`text` with a hyphen for what a file name should not have.

    Example:
        >>> file_name("ALE/Pong-v5")
        'ALE-Pong-v5'
    """
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)


def _names(recipe: str, config: RunConfig, label: object) -> Iterator[Path]:
    """``runs/RECIPE-ENV-LABEL-COUNTER``, for all counters."""
    return (
        Path("runs") / f"{file_name(recipe)}-{file_name(config.env)}-{label}-{count}" for count in itertools.count(1)
    )


def _made(path: Path) -> bool:
    """Whether the folder is new; another run may take a name at any moment.

    Raises:
        RLError: if it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=False)
    except ValueError as error:
        raise RLError(f"the run folder {str(path)!r} cannot be made: {error}; name another one with --out") from error
    except OSError as error:
        if os.path.lexists(path):
            return False
        raise RLError(f"the run folder {path} cannot be made: {error.strerror}; name another one with --out") from error
    return True
