"""Data sets by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rl.core.errors import UnknownComponentError
from rl.core.keys import nearest

__all__ = ["load_dataset", "register_dataset"]

_SOURCES: dict[str, Callable[..., Any]] = {}


def _minari(name: str, **settings: Any) -> Any:
    from rl.replay.datasets._minari import MinariExperienceReplay

    return MinariExperienceReplay(name, **settings)


_SOURCES["minari"] = _minari


def register_dataset(source: str, make: Callable[..., Any]) -> None:
    """Let ``load_dataset("source:name")`` call ``make(name, **settings)``.

    Args:
        source: what stands before the colon.
        make: returns a replay buffer.

    Example:
        >>> register_dataset("mine", lambda name, **settings: f"the data set {name}")
        >>> load_dataset("mine:walks")
        'the data set walks'
    """
    _SOURCES[source] = make


def load_dataset(name: str, **settings: Any) -> Any:
    """A data set as a replay buffer.

    Args:
        name: ``"source:name"``, such as ``"minari:mujoco/hopper/expert-v0"``. Sources are ``minari`` and those of
            `register_dataset`.
        settings: for the class of the source: ``batch_size``, ``root`` and others.

    Raises:
        UnknownComponentError: if there is no such source.
    """
    source, colon, rest = name.partition(":")
    if not colon or source not in _SOURCES:
        close = nearest(source, _SOURCES)
        hint = f"; did you mean {close}:{rest or source}?" if close is not None else ""
        raise UnknownComponentError(
            f"load_dataset: there is no source of {name!r}{hint}. Write SOURCE:NAME; sources are"
            f" {', '.join(sorted(_SOURCES))}"
        )
    return _SOURCES[source](rest, **settings)
