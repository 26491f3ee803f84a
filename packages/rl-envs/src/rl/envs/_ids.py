"""Ids of the environments of a library, and the message about an unknown one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches

from rl.core.errors import UnknownComponentError

__all__ = ["Ids", "check_id", "unknown_id"]

ALL, SOME = 150, 20  # ids that a message lists at most; of a library with more, as EnvPool


class Ids:
    """Descriptor of the class attribute ``available_envs``: the sorted ids, read from the library at each use.

    Args:
        find: imports the library and returns the ids.
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
