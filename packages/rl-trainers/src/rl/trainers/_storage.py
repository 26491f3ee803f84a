"""What a run leaves: its folder, its checkpoints, and what may change when it is resumed."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml

from rl.core.errors import ArgumentError, CheckpointError, MissingExtraError, RLError
from rl.trainers.algorithm import Algorithm
from rl.trainers.config import RunConfig, with_new_names


def kept_path(folder: str | Path, frames: int) -> Path:
    """Return the path of a checkpoint that `Checkpoint` keeps beside the last one.

    Example:
        >>> kept_path("checkpoints", 2048).name
        'frames-2048.safetensors'
    """
    return Path(folder) / f"frames-{frames}.safetensors"


@contextmanager
def atomic_path(path: Path) -> Generator[Path]:
    """Open a temporary path next to `path` that replaces it when the block ends without an error.

    What was at `path` before stays as it is until then, and for good if the block raises.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        _sync(temporary)
        temporary.chmod(0o644)
        temporary.replace(path)
        _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def remove_temporary(path: Path) -> None:
    """Delete the temporary files that a killed process left next to `path`."""
    for left in path.parent.glob(f".{path.stem}-*{path.suffix}"):
        left.unlink(missing_ok=True)


def write_atomic(path: Path, write: Callable[[Path], object] | str) -> None:
    """Fill `path` with a text, or with what ``write(temporary_path)`` writes, in one step.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_atomic(Path(folder) / "a.txt", "hello")
        ...     (Path(folder) / "a.txt").read_text()
        'hello'
    """
    with atomic_path(Path(path)) as temporary:
        if isinstance(write, str):
            temporary.write_text(write, encoding="utf-8")
        else:
            write(temporary)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def video_library() -> Any:
    """Return the library that writes videos.

    Raises:
        MissingExtraError: If it is not installed.
    """
    try:
        import imageio.v3 as imageio
        import imageio_ffmpeg  # noqa: F401  # pyright: ignore[reportUnusedImport]  # imageio needs it for mp4
    except ImportError as error:
        raise MissingExtraError(
            f"videos need {error.name}, which is not installed: pip install 'rl-trainers[video]'"
        ) from error
    return imageio


def check_video(out: str | Path) -> None:
    """Raise unless a video can be written to `out`.

    Raises:
        MissingExtraError: If the library that writes videos is not installed.
        ArgumentError: If there is a file at `out`, or its name has no known ending.
        RLError: If no file can be created there.
    """
    path = Path(out)
    if path.exists():
        raise ArgumentError(f"{path} exists already and is not overwritten; name another file with --video")
    if path.suffix not in (".mp4", ".gif"):
        raise ArgumentError(f"--video writes .mp4 or .gif, got {path.name!r}; name a file like out.mp4")
    video_library()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise RLError(f"{path} cannot be written: {error.strerror}; name another file with --video") from error


def this_process() -> dict[str, str]:
    """Time, command line and, in a git checkout, the commit of the working folder.

    Returns:
        ``started`` (UTC), ``command``, and ``git_commit``, which ends with ``-dirty`` if tracked files were changed;
        there is no ``git_commit`` outside a checkout.

    Example:
        >>> sorted(this_process())[0]
        'command'
    """
    found = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }
    commit = _git_commit()
    return found if commit is None else {**found, "git_commit": commit}


def _git_commit() -> str | None:
    """Return the commit that is checked out here; None if there is none, or no git."""
    found = _git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    return (found or "").strip() or None


def _git(*command: str) -> str | None:
    """Return what a git command prints; None if it fails, or there is no git."""
    try:
        done = subprocess.run(["git", *command], capture_output=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", errors="replace")


def this_machine() -> dict[str, Any]:
    """Host, operating system, processor and, where this process uses one, GPU.

    Example:
        >>> sorted(this_machine())[:3]
        ['host', 'processor', 'processors']
    """
    found = {
        "host": platform.node(),
        "system": platform.platform(),
        "processor": _processor(),
        "processors": os.cpu_count(),
    }
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        found["gpu"] = torch.cuda.get_device_name()
    return found


def _processor() -> str:
    """Model of the processor; exact continuations need the same one."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


#: ten times as fast where PyYAML has libyaml
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class RunFolder:
    """Paths inside a run folder.

    Args:
        path: The folder.
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
            CheckpointError: If another process trains in it.
        """
        from filelock import FileLock, Timeout

        lock = FileLock(self.path / ".lock", timeout=0.2)  # `is_locked` of another process may hold it for a moment
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
            CheckpointError: If so.
        """
        if not self.config.is_file():
            raise CheckpointError(
                f"the run folder {self.path} has disappeared: it was deleted or renamed during the run. Nothing more"
                " can be saved; train again"
            )

    @classmethod
    def create(cls, path: str | Path | None, recipe: Algorithm, config: RunConfig) -> RunFolder:
        """Create a folder that contains the config, and nothing else yet.

        Args:
            path: Path of the folder; ``runs/RECIPE-ENV-SEED-COUNTER`` if None.
            recipe: The recipe.
            config: Settings.

        Raises:
            RLError: If the folder is there already, or cannot be created.
            ArgumentError: If a setting cannot be written as YAML.
        """
        text = config_yaml(recipe.reference, config)
        candidates = _names(recipe.name, config, config.seed) if path is None else [Path(path)]
        folder = next((cls(name) for name in candidates if _create_folder(name)), None)
        if folder is None:
            raise RLError(
                f"the run folder {path} exists already and is not overwritten; name another one with"
                f" --out, or continue the run in it with --resume {path}"
            )
        write_atomic(folder.config, text)
        return folder

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Open the folder of an earlier run.

        Raises:
            CheckpointError: If there is no run in it.
        """
        folder = cls(path)
        if not folder.config.is_file():
            if str(path).startswith("hub:"):
                name = str(path).removeprefix("hub:")
                raise CheckpointError(f"{path} is not a run folder: `rl hub pull {name}` makes one of it")
            why = "it has no config.yaml" if folder.path.exists() else "it does not exist"
            raise CheckpointError(
                f"{folder.path} is not a run folder: {why}; name the folder that `rl train` printed, for example"
                " runs/ppo-CartPole-v1-0-1"
            )
        return folder

    def read_config(self) -> dict[str, Any]:
        """``config.yaml`` as a dict: ``recipe`` and the settings.

        Raises:
            CheckpointError: If it cannot be read.
        """
        try:
            values = yaml.load(self.config.read_text(encoding="utf-8"), Loader=_Loader)
        except OSError as error:
            raise CheckpointError(f"{self.config} cannot be read: {error.strerror}; change its permissions") from error
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
            raise CheckpointError(
                f"{self.config} is damaged: {' '.join(str(error).split())}; put back what it held"
            ) from error
        if not isinstance(values, dict) or "recipe" not in values:
            raise CheckpointError(f"{self.config} is damaged: it names no recipe; add the line 'recipe: ppo'")
        if not _is_small(values):
            raise CheckpointError(f"{self.config} is damaged: it holds more than any settings; put back what it held")
        if "updates_per_batch" in values:  # dqn of rl-trainers 0.3
            values["utd_ratio"] = values.pop("updates_per_batch") / values.get("frames_per_batch", 64)
        return values

    def update_config(self, text: str) -> None:
        """Replace ``config.yaml``: a resumed run may last longer than it was meant to."""
        write_atomic(self.config, text)

    def read_summary(self) -> dict[str, Any] | None:
        """``summary.json``; None if the run is not complete.

        Raises:
            CheckpointError: If it cannot be read.
        """
        if not self.summary.is_file():
            return None
        try:
            values = json.loads(self.summary.read_text(encoding="utf-8"))
            if not isinstance(values, dict):
                raise ValueError(f"it holds {type(values).__name__}")
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointError(f"{self.summary} is damaged: {error}; delete it, and resume the run") from error
        return values

    def write_summary(self, values: Mapping[str, Any]) -> None:
        """Write ``summary.json``."""
        write_atomic(self.summary, json.dumps(values, indent=2) + "\n")

    def read_history(self) -> list[dict[str, Any]]:
        """``history.json``: an entry for each start of the run; empty if there is none.

        Raises:
            CheckpointError: If the file is damaged.
        """
        try:
            return json.loads(self.history.read_text(encoding="utf-8")) if self.history.is_file() else []
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self.history} is damaged: {error}; delete it, and resume the run") from error

    def add_to_history(self, frames: int) -> None:
        """Record the start of this process in ``history.json``, and changes of the code in ``git-START.diff``.

        Args:
            frames: Number of frames that are done already.

        Raises:
            CheckpointError: If the file is damaged.
        """
        before, now = self.read_history(), {"frames": frames, **this_process()}
        if str(now.get("git_commit", "")).endswith("-dirty"):
            changes = _git("diff", "HEAD", "--no-color", "--no-ext-diff")
            if changes is not None:
                now["git_diff"] = f"git-{len(before) + 1}.diff"
                write_atomic(self.path / now["git_diff"], changes)
        now |= {"machine": this_machine(), "versions": package_versions()}
        write_atomic(self.history, json.dumps([*before, now], indent=2) + "\n")

    def is_locked(self) -> bool:
        """Whether a process trains in the folder."""
        from filelock import FileLock, Timeout

        path = self.path / ".lock"
        if not path.exists():
            return False
        try:
            with FileLock(path, timeout=0):
                return False
        except Timeout:
            return True
        except OSError:  # of another user, whose lock this process may not take
            return False


def _is_small(values: Any) -> bool:
    """Whether settings have at most 100,000 values and 20 levels.

    References of YAML count as what they stand for: a few lines of them can stand for more than any computer walks
    through, or contain themselves.
    """
    waiting: list[tuple[Any, int]] = [(values, 0)]
    number = 0
    while waiting and number <= 100_000 and waiting[-1][1] <= 20:
        one, depth = waiting.pop()
        number += 1
        inside = [*one, *one.values()] if isinstance(one, dict) else one if isinstance(one, list | set | tuple) else ()
        waiting += [(part, depth + 1) for part in inside]
    return not waiting


def check_name(out: str | Path) -> None:
    """Raise unless `out` can be the name of a folder and stand in files of text.

    Raises:
        ArgumentError: If not.
    """
    text = os.fspath(out)
    if not text.strip():
        raise ArgumentError("the run folder has an empty name; name one with --out, or leave --out out")
    if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
        raise ArgumentError(f"the run folder {text!a} has a byte that is no text; name another one with --out")


def runs_in(path: str | Path) -> list[RunFolder]:
    """List the run in a folder, or those of several seeds in the order of the seeds.

    Raises:
        CheckpointError: If there is no run in it.
    """
    whole = RunFolder(path)
    found = [RunFolder(one) for one in whole.path.glob("seed-*")] if not whole.config.is_file() else []
    found = [run for run in found if run.config.is_file() and run.path.name[len("seed-") :].isdecimal()]
    if not found:
        return [RunFolder.open(path)]
    return sorted(found, key=lambda run: int(run.path.name[len("seed-") :]))


def only_run(path: str | Path, use: str) -> RunFolder:
    """Return the run in a folder.

    Args:
        path: The folder.
        use: Clause of the error that says what one run is needed for.

    Raises:
        CheckpointError: If there is no run in it, or several.
    """
    found = runs_in(path)
    if len(found) > 1:
        raise CheckpointError(f"{path} has {len(found)} runs, and {use}: name one, as in {found[0].path}")
    return found[0]


def config_yaml(recipe: str, config: RunConfig) -> str:
    """Write a config as ``config.yaml`` contains it and ``--config`` reads it.

    Example:
        >>> from rl.trainers import PPOConfig
        >>> print(config_yaml("ppo", PPOConfig()).splitlines()[0])
        recipe: ppo

    Raises:
        ArgumentError: If a setting cannot be written as YAML.
    """
    try:
        return yaml.safe_dump(settings_of(recipe, config), sort_keys=False, default_flow_style=None)
    except yaml.YAMLError as error:
        raise ArgumentError(
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
    """Create a folder ``runs/RECIPE-ENV-seeds-COUNTER``, for runs that differ in their seed.

    Raises:
        RLError: If it cannot be created.
    """
    return next(path for path in _names(recipe, config, "seeds") if _create_folder(path))


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


def _create_folder(path: Path) -> bool:
    """Whether the folder is new; another run may take a name at any moment.

    Raises:
        RLError: If it cannot be created.
    """
    try:
        path.mkdir(parents=True, exist_ok=False)
    except ValueError as error:
        raise RLError(
            f"the run folder {str(path)!r} cannot be created: {error}; name another one with --out"
        ) from error
    except OSError as error:
        if os.path.lexists(path):
            return False
        raise RLError(
            f"the run folder {path} cannot be created: {error.strerror}; name another one with --out"
        ) from error
    return True


_DISTRIBUTIONS = (
    "rl-core",
    "rl-envs",
    "rl-modules",
    "rl-collectors",
    "rl-replay",
    "rl-objectives",
    "rl-trainers",
    "torch",
    "tensordict",
    "gymnasium",
    "numpy",
)


def package_versions() -> dict[str, str]:
    """Version by distribution, and that of Python, of what takes part in training.

    Example:
        >>> "torch" in package_versions()
        True
    """
    found = {"python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


CHANGEABLE = frozenset(
    {
        "total_frames",
        "stop_at_return",
        "stop_after",
        "device",
        "threads",
        "final_eval_episodes",
        "checkpoint_every",
        "keep_checkpoints",
        "loggers",
        "metric_names",
        "video_every",
    }
)
"""Settings that may differ when a run is resumed."""


def check_resume(folder: RunFolder, recipe: Algorithm, config: RunConfig, saved: Mapping[str, Any]) -> list[str]:
    """Refuse to continue a run with another recipe or with settings that may not change.

    Settings are compared with those in the checkpoint, so that an edited ``config.yaml`` is noticed.

    Returns:
        The settings that do change, as ``name=new (was old)``.

    Raises:
        CheckpointError: If recipe or settings differ, or all frames are done.
    """
    run = saved.get("run")
    frames = run.get("frames") if isinstance(run, dict) else None
    if run is None or not isinstance(frames, int):
        raise CheckpointError(f"{folder.last} is not the last checkpoint of a run; train again into a new folder")
    before = run.get("config") or folder.read_config()
    if before["recipe"] != recipe.reference:
        raise CheckpointError(
            f"{folder.path} is a run of {before['recipe']!r}, not of {recipe.reference!r}; resume it with"
            f" `rl train {before['recipe']} --resume {folder.path}`"
        )
    before = with_new_names(type(config), before)
    now = settings_of(recipe.reference, config)
    changed = {name: value for name, value in now.items() if before.get(name, value) != value}
    refused = [f"{name}={before[name]!r}, not {value!r}" for name, value in changed.items() if name not in CHANGEABLE]
    if refused:
        raise CheckpointError(
            f"{folder.path} was begun with {'; '.join(refused)}. Only {', '.join(sorted(CHANGEABLE))} may change on"
            " resume: leave the option out, put back what config.yaml held, or train into a new folder"
        )
    if frames >= config.total_frames and _has_result(folder, frames):
        raise CheckpointError(
            f"{folder.path} has done all its {frames} frames; ask for more:"
            f" rl train {recipe.reference} --resume {folder.path} --total-frames {2 * frames}"
        )
    return [f"{name}={value!r} (was {before[name]!r})" for name, value in changed.items()]


def _has_result(folder: RunFolder, frames: int) -> bool:
    """Whether the final evaluation after `frames` frames is done; it may have been interrupted."""
    try:
        summary = json.loads(folder.summary.read_text(encoding="utf-8"))
        done = summary["train_frames" if "train_frames" in summary else "frames"]  # the former in rl-trainers 0.3
        return done >= frames
    except (OSError, ValueError, KeyError, TypeError):
        return False


def first_line(error: BaseException) -> str:
    """Return kind and text of an error, in one line.

    Example:
        >>> first_line(KeyError("a"))
        "KeyError: 'a'"
    """
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
