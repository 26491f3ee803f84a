"""Fields of a config class, for --help and for checks. Imports no torch."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_type_hints

from rl.core.errors import SpecError

__all__ = ["LAYOUTS", "POLICIES", "REPEATED", "ConfigField", "check", "config_fields", "in_range", "one_of", "positive"]

POLICIES = ("mlp", "lstm", "gru")
"""Networks that a policy can be made of; all but the first are recurrent."""


LAYOUTS = ("auto", "channels-first", "channels-last", "flat")
"""How observations with two or more dimensions may be read."""

REPEATED = {"repeated": True}
"""Metadata of a field whose option may be given several times, once for each entry."""


@dataclass(frozen=True)
class ConfigField:
    """One field of a config: name, type, default, its sentence in the class's docstring, and if it may be repeated."""

    name: str
    type: Any
    default: Any
    doc: str
    repeated: bool = False


def config_fields(config: type) -> list[ConfigField]:
    """The fields of a config dataclass, in order, documented by the ``Args`` of its docstrings.

    Example:
        >>> from rl.trainers.recipes.ppo._config import PPOConfig
        >>> config_fields(PPOConfig)[0].name
        'env'
    """
    docs: dict[str, str] = {}
    for cls in reversed(config.__mro__):
        docs.update(_args_section(cls.__doc__ or ""))
    hints = get_type_hints(config)
    return [
        ConfigField(f.name, hints[f.name], _default_of(f), docs.get(f.name, ""), f.metadata.get("repeated", False))
        for f in dataclasses.fields(config)
    ]


def _default_of(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _args_section(docstring: str) -> dict[str, str]:
    """Name to sentence, from a Google-style ``Args`` section."""
    section = re.search(r"^[ \t]*Args:\n(.*?)(?=\n[ \t]*\w+:\n|\n[ \t]*\n|\Z)", docstring, re.MULTILINE | re.DOTALL)
    if section is None:
        return {}
    lines = section.group(1).splitlines()
    margin = len(lines[0]) - len(lines[0].lstrip())
    docs: dict[str, str] = {}
    name = ""
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if indent == margin and ":" in line:
            name, text = line.strip().split(":", 1)
            docs[name] = text.strip()
        elif name:
            docs[name] += " " + line.strip()
    return docs


def check(config: object, rules: dict[str, tuple[Callable[[Any], bool], str]]) -> None:
    """Raise about every field whose value breaks its rule, in one message.

    Args:
        config: the object whose fields are checked.
        rules: by field, a predicate and the words for what it wants.

    Raises:
        SpecError: naming class, field, value and what was expected.
    """
    wrong = [
        f"{name} must be {wanted}, got {getattr(config, name)!r}"
        for name, (accepts, wanted) in rules.items()
        if not accepts(getattr(config, name))
    ]
    if wrong:
        raise SpecError(f"{type(config).__name__}: {'; '.join(wrong)}")


def positive(value: Any) -> bool:
    """Whether `value` is above 0."""
    return value > 0


def in_range(low: float, high: float) -> tuple[Callable[[Any], bool], str]:
    """The rule ``low <= value <= high``."""
    return (lambda value: low <= value <= high), f"in [{low:g}, {high:g}]"


def one_of(*names: str) -> tuple[Callable[[Any], bool], str]:
    """The rule that the value is one of `names`."""
    return (lambda value: value in names), f"one of {', '.join(names)}"
