"""Checkpoints: files of named parts, written at once, checked when they are read, and continued from."""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from torch import nn

from rl.core import state as states
from rl.core.arguments import as_integer, one_of
from rl.core.errors import ArgumentError, CheckpointError, RLError
from rl.trainers._device import load_rng_state, rng_state
from rl.trainers._storage import first_line, kept_path

__all__ = ["Checkpoint", "LoadReport", "Stateful", "load_checkpoint", "save_checkpoint"]

_OWN = "checkpoint"  # entry of a file with what is about the file itself
_RNG = "rng"
_KEPT = re.compile(r"frames-(\d+)\.safetensors")
_UNFIT = (RLError, RuntimeError, LookupError, TypeError, ValueError, AttributeError)


class Stateful(Protocol):
    """Anything whose state a checkpoint holds."""

    def state_dict(self) -> Mapping[str, Any]: ...
    def load_state_dict(self, state: Any, /) -> Any: ...


def save_checkpoint(path: str | Path, state: Mapping[str, Any]) -> None:
    """Write `state` to `path`: all of it, or nothing and the old file stays.

    Args:
        path: A file, which is replaced in one step; its folder is created.
        state: Nested dicts, lists and tuples of tensors, numbers, strings, booleans and None.

    Raises:
        CheckpointError: If the state holds something else, or the file cannot be written.

    Example:
        >>> import tempfile, torch
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_checkpoint(Path(folder) / "x.safetensors", {"step": 3, "w": torch.ones(2)})
        ...     load_checkpoint(Path(folder) / "x.safetensors")
        {'step': 3, 'w': tensor([1., 1.])}
    """
    states.save(path, state)


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """Load the state that `save_checkpoint` wrote, with its tensors on the CPU.

    Raises:
        CheckpointError: If the file is missing, damaged, or was not written by `save_checkpoint`.
    """
    try:
        return states.load(path, mapped=False)  # users copy checkpoints over each other
    except CheckpointError as error:
        raise CheckpointError(
            f"{str(error).removesuffix('. Load another checkpoint; nothing was changed')}; use another checkpoint of"
            f" {Path(path).parent}, or train again into a new folder"
        ) from error


@dataclass(frozen=True)
class LoadReport:
    """What `Checkpoint.load` took from a file, and what it did not; as a text, a line for each.

    Args:
        frames: Frames at which the file was saved; 0 if it does not say.
        values: Plain values that were saved beside the parts.
        taken: Names of the parts that continue from the file, also ``rng``.
        not_taken: Reason for each part, and for each entry of a part, that stayed as it was or was not used.
    """

    frames: int
    values: dict[str, Any] = field(repr=False)
    taken: tuple[str, ...]
    not_taken: dict[str, str]

    def __str__(self) -> str:
        return "\n".join([f"taken: {', '.join(self.taken)}", *(f"not {k}: {why}" for k, why in self.not_taken.items())])


class Checkpoint:
    """Checkpoints of a loop: the last one, the newest few, and the best one by a metric.

    A file has the states of all parts, the plain values of `save`, and the generators of Python, NumPy, torch and CUDA,
    which are saved after the parts and restored after them. It is written to a temporary file that replaces the old
    one, has a checksum, and is no pickle: loading it runs no code. The folder of a run, `Run`, has the same files, so
    that ``Checkpoint("runs/x/checkpoints", {"policy": policy}).load("best")`` takes the policy of a run.

    Args:
        folder: Folder of the files, which the first `save` creates: ``last.safetensors``, ``best.safetensors``, and
            ``frames-N.safetensors``.
        parts: Objects with ``state_dict`` and ``load_state_dict``, by name: modules, optimizers, schedulers, losses,
            collectors, replay buffers, environments.
        keep_last: Number of the newest checkpoints that are kept beside the last one.
        best: Name of a value of `save`, by which the best checkpoint is chosen; of equal ones it is the later. Empty
            for no best checkpoint.
        mode: Direction of the better, ``max`` or ``min``.

    Raises:
        ArgumentError: If a part has no state, or a name that the file needs for itself; or if another argument is not
            one of these.

    Example:
        >>> import tempfile, torch
        >>> policy = torch.nn.Linear(2, 1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     checkpoint = Checkpoint(folder, {"policy": policy}, keep_last=2, best="return_mean")
        ...     for frames, score in ((100, 5.0), (200, 9.0), (300, 7.0)):
        ...         checkpoint.save(frames, return_mean=score)
        ...     print(sorted(path.name for path in checkpoint.folder.iterdir()))
        ...     best = checkpoint.load("best")
        ['best.safetensors', 'frames-200.safetensors', 'frames-300.safetensors', 'last.safetensors']
        >>> best.frames, best.values, best.taken
        (200, {'return_mean': 9.0}, ('policy', 'rng'))
    """

    def __init__(
        self,
        folder: str | Path,
        parts: Mapping[str, Stateful],
        *,
        keep_last: int = 0,
        best: str = "",
        mode: Literal["max", "min"] = "max",
    ) -> None:
        self.folder, self.parts = Path(folder), dict(parts)
        self.keep_last = as_integer(keep_last, "Checkpoint", "keep_last", least=0)
        self._metric, self._mode = best, one_of(mode, "Checkpoint", "mode", ("max", "min"))
        self._best: dict[str, Any] | None = None  # its frames and its value
        for name, part in self.parts.items():
            if name in (_OWN, _RNG):
                raise ArgumentError(f"a part of a checkpoint is called {name!r}, which the file needs; rename it")
            if not (callable(getattr(part, "state_dict", None)) and callable(getattr(part, "load_state_dict", None))):
                raise ArgumentError(
                    f"the part {name!r} of a checkpoint is a {type(part).__name__}, without state_dict and"
                    f" load_state_dict; plain values are arguments of save, as in save(frames, {name}=...)"
                )

    @property
    def last(self) -> Path:
        """Path of the last checkpoint."""
        return self.folder / "last.safetensors"

    @property
    def best(self) -> Path:
        """Path of the best checkpoint."""
        return self.folder / "best.safetensors"

    def exists(self) -> bool:
        """Whether there is a last checkpoint to continue from."""
        return self.last.is_file()

    def save(self, frames: int, /, **values: Any) -> None:
        """Write the last checkpoint, and keep it under further names as the arguments of the class say.

        Args:
            frames: Frames so far, or another count that grows.
            values: Plain values by name: numbers, texts, arrays, tensors, and lists and dicts of these. The one that
                is called as `best` decides whether this is the best checkpoint; a NaN is never.

        Raises:
            ArgumentError: If a value has the name of a part.
            CheckpointError: If a state holds what no file can, or the file cannot be written; the old one stays.
        """
        taken = values.keys() & {*self.parts, _OWN, _RNG}
        if taken:
            raise ArgumentError(f"a value of a checkpoint is called {min(taken)!r}, as a part is; rename it")
        score = float(values.get(self._metric, math.nan))
        better = self._is_better(score)
        best = {"frames": frames, "value": score} if better else self._best
        state: dict[str, Any] = {name: part.state_dict() for name, part in self.parts.items()}
        state |= {name: states.pack(value, f"the value {name!r}") for name, value in values.items()}
        # the generators are last: a part may draw while its state is taken
        state[_OWN] = {"frames": frames, "values": [*values], "best": best, _RNG: rng_state()}
        save_checkpoint(self.last, state)
        self._best = best
        if better:
            self._keep_as(self.best)
        if self.keep_last:
            self._keep_newest(frames)

    def _is_better(self, value: float) -> bool:
        if math.isnan(value) or self._best is None:
            return not math.isnan(value)
        sign = 1 if self._mode == "max" else -1
        return sign * value >= sign * self._best["value"]

    def _keep_as(self, path: Path) -> None:
        """Give the last checkpoint a second name; the next one is another file."""
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.unlink(missing_ok=True)
        try:
            os.link(self.last, temporary)
        except OSError:  # a file system without links
            shutil.copyfile(self.last, temporary)
        temporary.replace(path)
        temporary.unlink(missing_ok=True)  # which stays where both were the same file

    def _keep_newest(self, frames: int) -> None:
        self._keep_as(kept_path(self.folder, frames))
        kept = {int(name[1]): path for path in self.folder.iterdir() if (name := _KEPT.fullmatch(path.name))}
        newest = sorted(step for step in kept if step <= frames)[-self.keep_last :]
        for step in kept.keys() - set(newest):  # also those of frames that are trained again
            kept[step].unlink(missing_ok=True)

    def load(
        self,
        source: Literal["last", "best"] | int | str | Path = "last",
        *,
        names: Sequence[str] | None = None,
        partial: bool = False,
        state: Mapping[str, Any] | None = None,
    ) -> LoadReport:
        """Continue from a file.

        Args:
            source: File: ``last``, ``best``, the frames of one that is kept, or a path.
            names: Parts to take, and ``rng`` for the generators; all if None.
            partial: Whether to take what fits, in place of an error about what does not: parts that the file has, and
                of modules the entries that the file has in the same shape.
            state: Contents of the file, where `load_checkpoint` has read it already.

        Raises:
            ArgumentError: If there is no part of a name.
            CheckpointError: If the file is missing or damaged, or lacks a part, before anything is changed; or if a
                part does not fit, after the parts before it were loaded.
        """
        chosen = [*self.parts, _RNG] if names is None else names
        unknown = [name for name in chosen if name not in (*self.parts, _RNG)]
        if unknown:
            raise ArgumentError(f"this checkpoint has no part {unknown[0]!r}; it has {', '.join([*self.parts, _RNG])}")
        path = self._path(source)
        state = load_checkpoint(path) if state is None else state
        own = state.get(_OWN, {})
        missing = [name for name in self.parts if name in chosen and name not in state]
        if missing and not partial:
            raise CheckpointError(f"{path} lacks the parts {missing}; it was written by another program")
        others = [name for name in state if name not in self.parts and name != _OWN]
        saved = own.get("values", others)
        left = {name: "no part here" for name in others if name not in saved} | dict.fromkeys(
            missing, "not in the file"
        )
        taken: list[str] = []
        for name, part in self.parts.items():
            if name in chosen and name not in missing:
                unfit = _load(part, name, state[name], path, partial=partial)
                left |= unfit
                taken += [] if name in unfit else [name]
        values = {name: states.unpack(state[name], f"the value {name!r} of {path}") for name in saved if name in state}
        if names is None and not partial:
            self._best = own.get("best")
            if source == "last" and self._best is not None and self._best["frames"] == own["frames"]:
                self._keep_as(self.best)  # a process may have been killed just before
        if _RNG in chosen and _RNG in own:
            load_rng_state(own[_RNG])
            taken.append(_RNG)
        return LoadReport(own.get("frames", 0), values, tuple(taken), left)

    def _path(self, source: int | str | Path) -> Path:
        if isinstance(source, int):
            return kept_path(self.folder, source)
        return {"last": self.last, "best": self.best}.get(str(source), Path(source))


def _load(part: Any, name: str, saved: Any, path: Path, *, partial: bool) -> dict[str, str]:
    """Load a part; returns why it, or entries of it, were not taken."""
    fit, left = _fit(part, name, saved) if partial and isinstance(part, nn.Module) else (saved, dict[str, str]())
    try:
        part.load_state_dict(fit)
    except _UNFIT as error:
        if partial:
            return {name: first_line(error)}
        raise CheckpointError(
            f"{path} does not fit this run: its part {name!r} raised {first_line(error)}; was the environment or a"
            " network changed? Train again into a new folder"
        ) from error
    return left


def _fit(module: nn.Module, name: str, saved: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the state of a module with the entries of another that fit, and why the others do not."""
    own, left = module.state_dict(), dict[str, str]()
    for entry in (*own, *(entry for entry in saved if entry not in own)):
        there, here = (getattr(one.get(entry), "shape", ()) for one in (saved, own))
        if entry not in saved:
            left[f"{name}.{entry}"] = "not in the file"
        elif entry not in own:
            left[f"{name}.{entry}"] = "no entry here"
        elif there != here:
            left[f"{name}.{entry}"] = f"has the shape {list(there)} in the file, {list(here)} here"
        else:
            own[entry] = saved[entry]
    return dict(own), left
