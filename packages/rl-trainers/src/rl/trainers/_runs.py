"""Run folders as records: found below a folder, filtered, sorted and compared. Imports no torch."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from glob import glob, has_magic
from pathlib import Path
from typing import Any

from rl.core.errors import ArgumentError, CheckpointError
from rl.trainers._storage import RunFolder, runs_in

#: folders below the one that is searched: runs of seeds of cases of a benchmark
DEPTH = 4

#: bytes in which the last row of metrics.csv is
TAIL = 8192


@dataclass(frozen=True)
class Record:
    """What a run folder says about its run.

    Args:
        folder: The folder.
        settings: Recipe and settings.
    """

    folder: RunFolder
    settings: Mapping[str, Any]

    @cached_property
    def summary(self) -> Mapping[str, Any]:
        """``summary.json``; empty if the run is not complete."""
        return self.folder.read_summary() or {}

    @cached_property
    def history(self) -> Sequence[Mapping[str, Any]]:
        """``history.json``: the starts of the run."""
        return self.folder.read_history()

    @cached_property
    def _last_row(self) -> Mapping[str, str]:
        """Last row of ``metrics.csv`` as texts, without reading the file."""
        try:
            with self.folder.metrics.open("rb") as file:
                header = file.readline().decode().strip().split(",")
                file.seek(max(file.seek(0, os.SEEK_END) - TAIL, len(header)))
                lines = [line for line in file.read().decode().splitlines(keepends=True) if line.endswith("\n")]
        except (OSError, UnicodeDecodeError):
            return {}
        cells = lines[-1].strip().split(",") if lines else []
        return dict(zip(header, cells, strict=True)) if len(cells) == len(header) else {}

    @property
    def status(self) -> str:
        """``done``, ``running`` or ``stopped``."""
        frames = self._last_row.get("frames", "")
        if self.summary and self.summary.get("frames", 0) >= int(frames if frames.isdecimal() else 0):
            return "done"  # and not continued since
        return "running" if self.folder.is_locked() else "stopped"

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        """What the list of runs shows, as plain values; None for what is not there yet."""
        row = self._last_row
        rollout = row.get("rollout/return_mean", "")
        summary, first = self.summary, self.history[:1]
        return {
            "run": str(self.folder.path),
            "status": self.status,
            "recipe": self.settings.get("recipe"),
            "env": self.settings.get("env"),
            "seed": self.settings.get("seed"),
            "frames": summary.get("frames", int(row["frames"]) if row.get("frames", "").isdecimal() else 0),
            "best": summary.get("best/return_mean"),
            "last": summary.get("last/return_mean"),
            "rollout": float(rollout) if rollout else None,
            "seconds": summary.get("time/seconds", float(row["time/seconds"]) if row.get("time/seconds") else None),
            "started": first[0].get("started") if first else None,
        }

    def value(self, name: str) -> Any:
        """Return a fact, an entry of the summary, or a setting; None if the run has none of that name."""
        known = (self.facts, self.summary, self.settings)
        return next((one[name] for one in known if name in one), None)


def check_name(records: Sequence[Record], name: str) -> None:
    """Raise if no run has a fact, an entry of the summary or a setting of that name.

    Raises:
        ArgumentError: If so.
    """
    names: dict[str, None] = {}
    for record in records:
        names |= dict.fromkeys([*record.facts, *record.summary, *record.settings])
    if records and name not in names:
        close = get_close_matches(name, names, n=1)
        hint = f"did you mean {close[0]}?" if close else "name a column, an entry of summary.json, or a setting"
        raise ArgumentError(f"no run has {name!r}: {hint}")


def read_record(path: str | Path) -> Record:
    """Read a run folder.

    Raises:
        CheckpointError: If there is no run in it, or it is damaged.
    """
    folder = RunFolder.open(path)
    return Record(folder, folder.read_config())


def find_records(path: str | Path) -> tuple[list[Record], list[str]]:
    """Return the runs in a folder and below, by path, and what is wrong with those that cannot be read.

    Raises:
        CheckpointError: If there is no such folder.
    """
    if not Path(path).is_dir():
        raise CheckpointError(f"there is no folder {path}; name the one with your run folders, as in rl runs my-runs")
    records: list[Record] = []
    errors: list[str] = []
    for one in sorted(_folders(os.fspath(path), DEPTH)):
        try:
            record = read_record(one)
            _ = record.facts  # raises if a file is damaged
        except CheckpointError as error:
            errors.append(str(error))
        else:
            records.append(record)
    return records, errors


def _folders(path: str, depth: int) -> Iterator[str]:
    """Yield the folders that have a config."""
    try:
        entries = [*os.scandir(path)]
    except OSError:
        return
    if any(entry.name == "config.yaml" for entry in entries):
        yield path
    elif depth:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                yield from _folders(entry.path, depth - 1)


_CONDITION = re.compile(r"([\w/-]+)(>=|<=|!=|=|>|<)(.*)")


def choose(records: Sequence[Record], conditions: Sequence[str]) -> list[Record]:
    """Return the records that fulfil all conditions, as ``env=CartPole-v1``, ``gamma!=0.99`` or ``best>400``.

    Raises:
        ArgumentError: If a condition cannot be understood.
    """
    parsed: list[tuple[str, str, str]] = []
    for text in conditions:
        match = _CONDITION.fullmatch(text.strip())
        if match is None:
            raise ArgumentError(f"--where {text!r} is no condition: write NAME=VALUE, NAME!=VALUE, NAME>N or NAME<N")
        name = match[1].replace("-", "_")
        check_name(records, name)
        parsed.append((name, match[2], match[3].strip()))
    return [record for record in records if all(_holds(record.value(name), *rest) for name, *rest in parsed)]


def _holds(value: Any, sign: str, wanted: str) -> bool:
    if sign in ("=", "!="):
        same = str(value).lower() == wanted.lower() or _number(value) == _number(wanted) is not None
        return same == (sign == "=")
    number, limit = _number(value), _number(wanted)
    if limit is None:
        raise ArgumentError(f"--where needs a number after {sign}, got {wanted!r}")
    if number is None:
        return False
    return {">": number > limit, "<": number < limit, ">=": number >= limit, "<=": number <= limit}[sign]


def _number(value: Any) -> float | None:
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None


def sort(records: Sequence[Record], name: str) -> list[Record]:
    """Return the records in the order of a fact or setting; those without it come first.

    Raises:
        ArgumentError: If there is none of that name.
    """
    name = name.replace("-", "_")
    check_name(records, name)

    def key(record: Record) -> tuple[int, float, str]:
        value = record.value(name)
        number = _number(value)
        return (0, 0.0, "") if value is None else (1, number or 0.0, "") if number is not None else (2, 0.0, str(value))

    return sorted(records, key=key)


def runs_of(text: str) -> list[RunFolder]:
    """Return the runs that a word names: a run, the folder of seeds, or a pattern such as ``runs/ppo-*``.

    Raises:
        CheckpointError: If there are none.
    """
    paths = sorted(glob(text)) if has_magic(text) and not Path(text).exists() else [text]
    if not paths:
        raise CheckpointError(f"no folder fits {text}; `rl runs` lists those in runs/")
    return [folder for path in paths for folder in runs_in(path)]


def group_of(text: str) -> list[Record]:
    """Return the runs that a word names, as `runs_of`, with their settings.

    Raises:
        CheckpointError: If there are none, or one is damaged.
    """
    return [Record(folder, folder.read_config()) for folder in runs_of(text)]


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ, with both values; None where there is none."""
    names = [*first, *(name for name in second if name not in first)]
    return {name: (first.get(name), second.get(name)) for name in names if first.get(name) != second.get(name)}


def size_of(path: Path) -> int:
    """Return the bytes of all files in a folder."""
    return sum(file.lstat().st_size for file in path.rglob("*") if file.is_file() or file.is_symlink())


def as_json(value: Any) -> str:
    r"""Return a value as JSON; NaN and infinity become null, as programs expect.

    Example:
        >>> as_json({"return": float("nan")})
        '{\n  "return": null\n}\n'
    """
    return json.dumps(_finite(value), indent=2, default=str, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not abs(value) < float("inf") else value
