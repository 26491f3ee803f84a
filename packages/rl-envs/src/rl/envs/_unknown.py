"""The message about an id that a simulator does not have."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["unknown_id"]


def unknown_id(library: str, given: str, ids: Iterable[str]) -> str:
    """Say that a library has no environment of a name, and name the nearest ids.

    Example:
        >>> unknown_id("dm_control", "chetah-run", ["cheetah-run", "fish-swim"])
        "dm_control has no environment 'chetah-run'. Did you mean 'cheetah-run'? All are in available_envs"
    """
    known = list(ids)
    close = get_close_matches(given, known, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(repr(name) for name in close)}?" if close else ""
    return f"{library} has no environment {given!r}.{hint} All are in available_envs"
