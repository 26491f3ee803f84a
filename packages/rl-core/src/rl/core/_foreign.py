"""What installed packages say about names and arguments of other libraries."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from rl.core.errors import BrokenPluginWarning, issue_warning
from rl.core.settings import normalized, settings


@cache
def foreign_answers(what: str) -> tuple[Callable[[str], Any], ...]:
    """Return the entry points of the group ``rl.foreign``; one that cannot be imported is named in a warning.

    Args:
        what: ``names``, answered with a sentence or None, or ``arguments`` of a class or function, by its package and
            qualified name, answered with `rl.core.arguments.Needless` by argument.
    """
    disabled = {normalized(name) for name in settings().plugins_disable}
    found: list[Callable[[str], Any]] = []
    for entry in entry_points(group="rl.foreign", name=what):
        owner = normalized(entry.dist.name if entry.dist else "?")
        if disabled & {"*", owner}:
            continue
        try:
            found.append(entry.load())
        except Exception as error:  # noqa: BLE001  the error that is about to be raised is the one to see
            issue_warning(f"{owner} is left out of messages: {error!r:.200}", BrokenPluginWarning)
    return tuple(found)
