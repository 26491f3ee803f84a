"""Import of a simulator's library, or one sentence about how to get it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import version
from typing import Any

from rl.core.errors import MissingExtraError, UnknownComponentError

ALL, SOME = 150, 20  # ids that a message lists at most; of a library with more, as EnvPool


class Ids:
    """Descriptor of the class attribute ``available_envs``: the sorted ids, read from the library at each use.

    Args:
        find: Function that imports the library and returns the ids.
    """

    def __init__(self, find: Callable[[], Iterable[str]]) -> None:
        self._find = find

    def __get__(self, instance: object, owner: type | None = None) -> list[str]:
        return sorted(self._find())


def check_id(library: str, given: str, ids: Iterable[str]) -> None:
    """Raise an UnknownComponentError that names the nearest ids, or all, unless `given` is one of them."""
    known = list(ids)
    if given not in known:
        raise UnknownComponentError(unknown_id(library, given, known))


def unknown_id(library: str, given: str, ids: Iterable[str]) -> str:
    """Say that a library has no environment of a name, and name the nearest ids; all if none is near.

    Example:
        >>> unknown_id("dm_control", "chetah-run", ["cheetah-run", "fish-swim"])
        "dm_control has no environment 'chetah-run'. Did you mean 'cheetah-run'?"
        >>> unknown_id("dm_control", "Pong", ["cheetah-run", "fish-swim"])
        "dm_control has no environment 'Pong'. It has cheetah-run, fish-swim"
    """
    known = sorted(ids)
    close = get_close_matches(given, known, n=3, cutoff=0.5)
    if close:
        return f"{library} has no environment {given!r}. Did you mean {' or '.join(repr(name) for name in close)}?"
    shown = known if len(known) <= ALL else known[:SOME]
    more = f" and {len(known) - len(shown)} more" if len(known) > len(shown) else ""
    return f"{library} has no environment {given!r}. It has {', '.join(shown) or 'none'}{more}"


def import_library(
    module: str,
    *,
    needed_by: str,
    extra: str = "",
    remedy: str = "",
    distribution: str | None = None,
    at_least: str | None = None,
    below: str | None = None,
) -> Any:
    """Import a module of an optional library, after its version has been checked.

    Args:
        module: Full name of the module.
        needed_by: Class that the message names.
        extra: Extra of rl-envs that installs the library.
        remedy: Instruction to get the library if no extra installs it; replaces `extra` in messages.
        distribution: Name on the package index; the first part of `module` if None.
        at_least: Oldest version that is supported; any if None.
        below: First version that is not supported; none if None.

    Raises:
        MissingExtraError: If the library, or one that it needs, is not installed, or has another version.

    Example:
        >>> import_library("no_such_simulator", needed_by="SomeEnv", extra="some")
        Traceback (most recent call last):
        rl.core.errors.MissingExtraError: SomeEnv needs no_such_simulator, which is not installed: ...
    """
    name = distribution or module.partition(".")[0]
    remedy = remedy or f'pip install "rl-envs[{extra}]"'
    try:
        library = import_module(module)
        found = version(name) if at_least or below else ""
    except ImportError as error:  # PackageNotFoundError is one
        what = getattr(error, "name", None) or name
        missing = name if what == module.partition(".")[0] else f"{name} with {what}"
        raise MissingExtraError(f"{needed_by} needs {missing}, which is not installed: {remedy}") from error
    if at_least and _release(found) < _release(at_least):
        raise MissingExtraError(f"{needed_by} needs {name} {at_least} or later, found {found}: {remedy} -U")
    if below and _release(found) >= _release(below):
        raise MissingExtraError(f'{needed_by} needs {name} below {below}, found {found}: pip install "{name}<{below}"')
    return library


def _release(text: str) -> tuple[int, ...]:
    """Return the numbers of a version: ``(1, 27, 0)`` of ``1.27.0rc1``."""
    numbers = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in numbers[0].split(".")) if numbers else ()
