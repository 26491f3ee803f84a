"""Which code a file may name: installed components, and modules that the user trusts. Imports no torch."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rl.core.errors import RLError
from rl.trainers._config.named import is_component

__all__ = ["check_trusted", "trust_options", "unimportable"]

_CODE = frozenset({"recipe", "env", "wrapper", "transform", "sampler", "loggers"})
"""Settings whose values name components or ``module:attribute``; a colon in them is nothing else."""
_KINDS = {"recipe": "recipe", "env": "env", "transform": "transform", "sampler": "sampler", "loggers": "logger"}
"""Kinds of the components that these settings name."""
_NO_CODE = frozenset({"dataset", "device", "init"})
"""Settings that may look like it: ``minari:pendulum``, ``runs/a:b``."""
_LIKE_CODE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\S*")
_PROGRAMS = "unity-mlagents"
"""The component whose id is a program that it starts."""


def check_trusted(settings: Mapping[str, Any], trust: str | Sequence[str], file: str | Path) -> None:
    """Raise if settings from a file name code that is neither an installed component nor trusted.

    Run folders, config files and benchmark files are data that people share. So nothing in them is imported or called,
    also if the run was made here: every file is treated alike, and only the command line or the caller adds modules.

    Args:
        settings: Settings of `file`, without those that the command line replaces.
        trust: Modules whose code may be named, with all that is in them: ``my_env`` includes ``my_env.mazes``.
        file: Path for the message.

    Raises:
        RLError: if so.

    Example:
        >>> check_trusted({"env": "CartPole-v1", "loggers": ["csv"]}, (), "config.yaml")
        >>> check_trusted({"env": "my_env:Maze"}, ["my_env"], "config.yaml")
        >>> check_trusted({"env": "subprocess:getoutput"}, (), "config.yaml")
        Traceback (most recent call last):
        ...
        rl.core.errors.RLError: config.yaml names code of the module subprocess (env: 'subprocess:getoutput'), and ...
    """
    trusted = (trust,) if isinstance(trust, str) else tuple(trust)
    found = {
        (name, setting, text)
        for setting, value in settings.items()
        for name, text in _texts_of(str(setting).replace("-", "_"), value)
        if not any(name == one or name.startswith(f"{one}.") for one in trusted if one)
    }
    if found:
        modules = sorted({_printable(name) for name, _, _ in found})
        listed = ", ".join(f"{setting}: {text!r}" for _, setting, text in sorted(found))
        options = " ".join(f"--trust {shlex.quote(name)}" for name in modules)  # for a shell, from a file of others
        raise RLError(
            f"{file} names code of the module{'s' * (len(modules) > 1)} {', '.join(modules)} ({listed}), and no file"
            f" makes others' code run by itself. If you know this code, add {options}; in Python"
            f" trust=({', '.join(map(repr, modules))},)"
        )


def trust_options(settings: Mapping[str, Any]) -> str:
    """The options, after a space, with which a file of these settings can be read; empty if none is needed.

    Example:
        >>> trust_options({"env": "my_env:Maze"})
        ' --trust my_env'
    """
    names = {name for setting, value in settings.items() for name, _ in _texts_of(setting, value)}
    return "".join(f" --trust {shlex.quote(_printable(name))}" for name in sorted(names))


def unimportable(settings: Mapping[str, Any]) -> list[str]:
    """What settings name that no other process can import: what is in a script, a lambda, or inside of a function.

    Example:
        >>> unimportable({"env": "__main__:Maze", "wrapper": ["my_env:<lambda>", "my_env:Wrapper"]})
        ['__main__:Maze', 'my_env:<lambda>']
    """
    found = [
        (module, text.partition(":{")[0]) for key, value in settings.items() for module, text in _texts_of(key, value)
    ]
    return sorted({name for module, name in found if module == "__main__" or "<" in name})


def _printable(name: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in name)


def _texts_of(setting: str, value: Any) -> Iterator[tuple[str, str]]:
    """What has to be trusted for a value, with the text that names it."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _texts_of(setting, key)  # a mapping in the place of a list is read as its keys
            yield from _texts_of(f"{setting}.{key}", one)
    elif isinstance(value, list | tuple | set):
        for one in value:
            yield from _texts_of(setting, one)
    elif isinstance(value, str) and setting not in _NO_CODE:
        yield from _named_in(setting, value)


def _is_offered(setting: str, name: str) -> bool:
    """Whether ``distribution:name``, in an environment also ``distribution:name/ID``, is an installed component."""
    kind = _KINDS.get(setting)
    if kind is None or name.count(":") != 1:
        return False
    prefix = name.partition("/")[0]
    return is_component(kind, name) or (kind == "env" and ":" in prefix and is_component(kind, prefix))


def _named_in(setting: str, text: str) -> Iterator[tuple[str, str]]:
    name, brace, arguments = text.partition(":{")
    before, colon, rest = name.partition(":")
    if colon and _is_offered(setting, name):  # acme-rl:acme/line
        name, colon = rest, ""
    if setting == "ray":
        if text not in ("", "auto", "local"):  # what a cluster returns is unpickled, which runs code
            yield text, text
    elif setting == "env" and name.partition("/")[0] == _PROGRAMS:
        yield _PROGRAMS, text
    elif colon and (setting in _CODE or _LIKE_CODE.fullmatch(name)):
        yield before.rpartition("/")[2], text  # gym/my_env:Maze-v0 imports my_env
    if brace and setting in _CODE:
        try:
            inner = yaml.safe_load("{" + arguments)
        except (yaml.YAMLError, RecursionError):
            return  # refused where it is used
        yield from _texts_of(f"{setting}.arguments", inner)
