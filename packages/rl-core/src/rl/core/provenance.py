"""Which stage of a pipeline had a key last, and which one dropped it; kept so that errors can name them.

Whatever takes a batch and gives one on (the postproc of a collector, the transforms of an environment or of a buffer)
notes once which keys it was given and which it gave. That costs nothing afterwards, and is forgotten with its owner.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from rl.core.keys import NestedKey, unwrap

__all__ = ["fate_of", "forget_stage", "keys_in", "note_stage", "through"]


@dataclass(frozen=True)
class _Stage:
    name: str
    taken: frozenset[NestedKey]
    given: frozenset[NestedKey]
    promised: bool

    @property
    def keys(self) -> frozenset[NestedKey]:
        return self.taken | self.given


_ALIKE = 0.5  # of keys that batches of one pipeline share at least

_stages: dict[tuple[int, str], _Stage] = {}
_owners: dict[int, weakref.ref[Any]] = {}


def note_stage(
    owner: object,
    name: str,
    taken: Iterable[NestedKey],
    given: Iterable[NestedKey] | None = None,
    *,
    promised: bool = False,
) -> None:
    """Remember which keys a stage was given and gave on, in place of what was noted of it before.

    Args:
        owner: has the stage; what is noted lives as long as it. One that cannot be referenced weakly is not noted.
        name: how messages call the stage, such as ``"the postproc of Collector"``.
        taken: keys that it was given.
        given: keys that it gave on; the same if None.
        promised: whether these are keys of specs. Who promises a key need not have had it.

    Example:
        >>> class Buffer: ...
        >>> buffer = Buffer()
        >>> note_stage(buffer, "the transform of Buffer", taken=["action", "is_init"], given=["action"])
        >>> fate_of("is_init", present=["action"])
        'The transform of Buffer dropped it.'
        >>> del buffer
        >>> fate_of("is_init", present=["action"])
        ''
    """
    place = id(owner)
    if place not in _owners:
        try:
            _owners[place] = weakref.ref(owner, lambda _: _forget(place))
        except TypeError:
            return
    before = frozenset(unwrap(key) for key in taken)
    after = before if given is None else frozenset(unwrap(key) for key in given)
    _stages.pop((place, name), None)  # the last one noted stands last
    _stages[place, name] = _Stage(name, before, after, promised)


def forget_stage(owner: object) -> None:
    """Forget what was noted of `owner`, which has become another."""
    _forget(id(owner))


def _forget(place: int) -> None:
    _owners.pop(place, None)
    for key in [key for key in list(_stages) if key[0] == place]:
        _stages.pop(key, None)


def fate_of(key: NestedKey, present: Iterable[NestedKey]) -> str:
    """What became of a key that a batch lacks, in a sentence; nothing if no stage has seen it.

    A batch does not carry where it came from; its keys tell. It came from the stage that gave the keys most like its
    own, and there from those that were noted before and share most of them. Stages unlike it are of another pipeline.

    Args:
        key: the one that is absent.
        present: the keys that are there.
    """
    wanted, here = unwrap(key), frozenset(unwrap(one) for one in present)
    way = _way_of(here)
    dropped: list[str] = []
    for place, stage in enumerate(way):
        if wanted in stage.taken and wanted not in stage.given:
            dropped.append(stage.name)
        elif dropped:
            break
        elif wanted in stage.given and not stage.promised:
            return _lost_behind(stage, way[place - 1] if place else None)
    return f"{_sentence(' and '.join(dropped[::-1]))} dropped it." if dropped else ""


def _way_of(present: frozenset[NestedKey]) -> list[_Stage]:
    """The stages that a batch with these keys came through as it seems, the last one first.

    It came from the stage that gave what is most like it; of several, from the one that was noted last. The stages in
    front of that one were noted before it, in the order of their first batch, and share most of their keys with it.
    """
    stages = list(_stages.values())
    likeness = [_likeness(stage.given, present) for stage in stages]
    if max(likeness, default=0.0) < _ALIKE:
        return []
    last = max(range(len(stages)), key=lambda place: (likeness[place], place))
    return [one for one in stages[last::-1] if _overlap(one.keys, present) >= _ALIKE]


def _likeness(one: frozenset[NestedKey], other: frozenset[NestedKey]) -> float:
    """Shared keys, of those that either has (Jaccard index)."""
    return len(one & other) / max(1, len(one | other))


def _overlap(one: frozenset[NestedKey], other: frozenset[NestedKey]) -> float:
    """Shared keys, of those that the smaller one has."""
    return len(one & other) / max(1, min(len(one), len(other)))


def _lost_behind(holder: _Stage, behind: _Stage | None) -> str:
    if behind is None:
        return f"{_sentence(holder.name)} had it: what came behind dropped it."
    return f"{_sentence(holder.name)} had it, and {behind.name} was not given it: it was dropped in between."


def keys_in(entries: Any) -> list[NestedKey]:
    """The leaf keys of a TensorDict or of specs, or the keys of a dict; none of anything else."""
    if isinstance(entries, dict):
        return [unwrap(key) for key in entries]
    if not hasattr(entries, "batch_size") or not hasattr(entries, "keys"):
        return []
    return [unwrap(key) for key in entries.keys(include_nested=True, leaves_only=True)]


def through(
    owner: object, stages: Iterable[tuple[str, Callable[[Any], Any]]], entries: Any, *, promised: bool = False
) -> Any:
    """`entries` through functions in a row, each of which is noted.

    Args:
        owner: has the functions.
        stages: names and functions.
        entries: what the first of them gets: a TensorDict, specs, or a dict by flat key.
        promised: see `note_stage`.
    """
    for name, function in stages:
        taken = keys_in(entries)
        entries = function(entries)
        note_stage(owner, name, taken, keys_in(entries), promised=promised)
    return entries


def _sentence(name: str) -> str:
    return name[:1].upper() + name[1:]
