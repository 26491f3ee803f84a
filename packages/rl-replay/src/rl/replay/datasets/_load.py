"""Data sets by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from rl.core.errors import ContractError, DuplicateComponentError, UnknownComponentError
from rl.core.keys import nearest

__all__ = ["load_dataset", "register_dataset"]

_SOURCES: dict[str, Callable[..., Any] | str] = {
    "atari-dqn": "rl.replay.datasets._atari:AtariDQNExperienceReplay",
    "d4rl": "rl.replay.datasets._d4rl:D4RLExperienceReplay",
    "gen-dgrl": "rl.replay.datasets._gen_dgrl:GenDGRLExperienceReplay",
    "lerobot": "rl.replay.datasets._lerobot:LeRobotExperienceReplay",
    "minari": "rl.replay.datasets._minari:MinariExperienceReplay",
    "openx": "rl.replay.datasets._open_x:OpenXExperienceReplay",
}


def register_dataset(source: str, make: Callable[..., Any] | str, *, replace: bool = False) -> None:
    """Let ``load_dataset("source:name")`` call ``make(name, **settings)``.

    Args:
        source: what stands before the colon.
        make: returns a replay buffer; or ``"module:attribute"``, which is imported at the first use.
        replace: whether a source of this name may be replaced.

    Raises:
        ContractError: if `source` is empty or has a colon, or `make` cannot be called.
        DuplicateComponentError: if there is such a source, and `replace` is false.

    Example:
        >>> register_dataset("doctest", lambda name, **settings: f"the data set {name}")
        >>> load_dataset("doctest:walks")
        'the data set walks'
    """
    if not source or ":" in source:
        raise ContractError(f"register_dataset: source is a name without a colon, got {source!r}")
    if not (callable(make) or (isinstance(make, str) and ":" in make)):
        raise ContractError(
            f"register_dataset: make is a function of the name, or its 'module:attribute', got {make!r}"
        )
    if source in _SOURCES and not replace:
        raise DuplicateComponentError(
            f"register_dataset: there is a source {source!r} already. Choose another name, or replace=True"
        )
    _SOURCES[source] = make


def load_dataset(name: str, **settings: Any) -> Any:
    """A data set as a replay buffer.

    Args:
        name: ``"source:name"``, such as ``"minari:mujoco/hopper/expert-v0"`` or ``"d4rl:data/hopper_medium-v2.hdf5"``.
            Sources are ``atari-dqn``, ``d4rl``, ``gen-dgrl``, ``lerobot``, ``minari``, ``openx`` and those of
            `register_dataset`.
        settings: for the class of the source: ``batch_size``, ``root``, ``download``, ``split_trajs`` and others.

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
    make = _SOURCES[source]
    if isinstance(make, str):
        module, _, attribute = make.partition(":")
        make = getattr(import_module(module), attribute)
    return make(rest, **settings)
