"""The space that ``rl tune`` searches: ranges beside fields of settings, and those of ``--space``. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rl.core.errors import ArgumentError
from rl.trainers._arguments import UsageError, parse_value, split_commas, unknown
from rl.trainers.config import ConfigField, RunConfig, config_fields, old_names

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(:log)?")

#: settings of the machine and of what is written, which may change between calls
PLACE = ("device", "loggers", "metric_names", "threads", "workers", "ray")

#: settings that all trials share; the seeds are those of --seeds
_FIXED = ("seed", "env", *PLACE)


@dataclass(frozen=True)
class Dimension:
    """What one setting may be: a range of numbers, or one of several values.

    Args:
        name: Name of the setting.
        text: The range as it is written, ``low..high``, ``low..high:log`` or ``a,b,c``.
        values: Lowest and highest value, or all values.
        labels: Texts of the values of a choice; none for a range.
        log: Whether a range is searched on a logarithmic scale.
    """

    name: str
    text: str
    values: tuple[Any, ...]
    labels: tuple[str, ...] = ()
    log: bool = False

    def suggest(self, trial: Any) -> Any:
        """Return the value of a trial of Optuna."""
        if self.labels:
            return self.values[self.labels.index(trial.suggest_categorical(self.name, self.labels))]
        suggest = trial.suggest_int if isinstance(self.values[0], int) else trial.suggest_float
        return suggest(self.name, *self.values, log=self.log)

    def read(self, found: Any) -> Any:
        """Return the value that a parameter of Optuna stands for."""
        return self.values[self.labels.index(found)] if self.labels else found

    def find(self, value: Any) -> Any:
        """Return the parameter of Optuna for a value; None if it is not in the space."""
        if self.labels:
            return next((label for label, one in zip(self.labels, self.values, strict=True) if one == value), None)
        return value if self.values[0] <= value <= self.values[1] else None


def space_of(config: RunConfig, given: Sequence[str], *, only: str | None, typed: Sequence[str]) -> list[Dimension]:
    """Return what is searched: the ranges of the settings, those of ``--space`` in place of them, less what is typed.

    Of a range that is declared beside its field, values that the other settings of `config` exclude are left out.

    Args:
        config: Settings that every trial has in common.
        given: Values of ``--space``, as ``learning_rate=1e-5..1e-2:log``.
        only: Names of the settings that are searched, with commas; all if None.
        typed: Names of settings that the command line fixes.

    Raises:
        UsageError: If a range cannot be understood, there is no such setting, or nothing is searched.
    """
    fields = {field.name: field for field in config_fields(type(config)) if field.name not in _FIXED}
    ranges = _ranges(type(config), fields, given)
    fixed = [name for name in ranges if name in typed]
    if fixed:
        option = fixed[0].replace("_", "-")
        raise UsageError(f"--{option} fixes {fixed[0]}, and --space searches it: remove one")
    found: dict[str, Dimension] = {name: _parse(fields[name], text, config) for name, text in ranges.items()}
    for name, field in fields.items():
        if field.search and name not in found and name not in typed:
            text = _fit(field, config)
            if text:
                found[name] = _parse(field, text, config)
    chosen = [name for name in fields if name in found]
    if not chosen:
        raise UsageError(
            f"{config.recipe} declares no ranges: name what to search, as --space learning_rate=1e-5..1e-2:log"
        )
    wanted = chosen if only is None else [_name(type(config), name) for name in only.split(",")]
    for name in wanted:
        if name in fields and name not in found and name not in typed:
            raise UsageError(f"--only {name}: it is not searched, give it a range with --space {name}=low..high")
        if name not in found:
            raise UsageError(f"--only: {unknown('searched setting', name, chosen, more=', '.join(chosen))}")
    return [found[name] for name in chosen if name in wanted]


def _name(config: type[RunConfig], text: str) -> str:
    name = text.strip().replace("-", "_")
    return old_names(config).get(name, name)


def _ranges(config: type[RunConfig], fields: Mapping[str, ConfigField], given: Sequence[str]) -> dict[str, str]:
    """Return the text of each range of ``--space`` by name of its setting."""
    ranges: dict[str, str] = {}
    for text in given:
        name, sign, value = text.partition("=")
        name = _name(config, name)
        if not sign or not value.strip():
            raise UsageError(f"--space {text}: write NAME=low..high, NAME=low..high:log or NAME=a,b,c")
        if name in _FIXED:
            raise UsageError(f"--space {text}: {name} is the same in all trials")
        if name not in fields:
            raise UsageError(f"--space {text}: {unknown('setting', name, list(fields))}")
        if name in ranges:
            raise UsageError(f"--space {name} is given twice: remove one")
        ranges[name] = value.strip()
    return ranges


def _fit(field: ConfigField, config: RunConfig) -> str:
    """Return what the other settings leave of the range of a field; empty if that is not enough to search."""
    match = _RANGE.fullmatch(field.search)
    parts = [match[1], match[2]] if match else split_commas(field.search)
    kept = [part for part in parts if not _error(config, field.name, parse_value(field, part))]
    if match:
        return field.search if kept == parts else ""
    return ",".join(kept) if len(kept) > 1 else ""


def _parse(field: ConfigField, text: str, config: RunConfig) -> Dimension:
    """Read a range.

    Raises:
        UsageError: If it cannot be understood, is empty, or has values that a rule excludes.
    """
    where = f"--space {field.name}={text}"
    match = _RANGE.fullmatch(text)
    parts = [match[1], match[2]] if match else split_commas(text)
    if len({*parts}) < max(2, len(parts)):
        raise UsageError(f"{where}: write low..high, low..high:log, or two or more different values a,b,c")
    try:
        values = [parse_value(field, part) for part in parts]
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    wrong = next(filter(None, (_error(config, field.name, value) for value in values)), "")
    if wrong:
        raise UsageError(f"{where}: {wrong}")
    if match is None:
        return Dimension(field.name, ",".join(parts), tuple(values), labels=tuple(parts))
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in values):
        raise UsageError(f"{where}: {field.name} has values of another kind, list them, as a,b,c")
    low, high = values
    if low >= high or (match[3] and low <= 0):
        above = " above 0" if match[3] else ""
        raise UsageError(f"{where}: the range is empty, write low..high with low{above} and below high")
    return Dimension(field.name, text, (low, high), log=bool(match[3]))


def _error(config: RunConfig, name: str, value: Any) -> str:
    """Return what is wrong with a value among the other settings; empty if nothing is."""
    try:
        replace(config, **{name: value})
    except ArgumentError as error:
        return str(error)
    return ""
