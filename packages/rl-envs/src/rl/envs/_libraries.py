"""Import of a simulator's library, or one sentence about how to get it."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.metadata import version
from typing import Any

from rl.core.errors import MissingExtraError

__all__ = ["import_library"]


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
        module: full name of the module.
        needed_by: class that the message names.
        extra: extra of rl-envs that installs the library.
        remedy: how to get the library if no extra installs it; replaces `extra` in messages.
        distribution: name on the package index; the first part of `module` if None.
        at_least: oldest version that is supported; any if None.
        below: first version that is not supported; none if None.

    Raises:
        MissingExtraError: if the library, or one that it needs, is not installed, or has another version.

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
    """The numbers of a version: ``(1, 27, 0)`` of ``1.27.0rc1``."""
    numbers = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in numbers[0].split(".")) if numbers else ()
