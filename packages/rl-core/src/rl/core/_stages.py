"""What stages of a pipeline noted of the keys that they were given and gave on; see `rl.core.provenance`."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, cast

from rl.core.keys import NEXT, NestedKey, unwrap

__all__ = ["Keys", "Stage", "bare", "forget_stage", "in_order", "note_stage", "noted", "parts_of"]

Keys = frozenset[NestedKey]


@dataclass(frozen=True, eq=False)
class Stage:
    """What one stage noted, see `note_stage`.

    Args:
        place: identity of its owner.
        order: when it was noted, as a number that grows.
        name: how messages call it.
        taken: keys that it was given.
        given: keys that it gave on.
        function: whether it does something, and does not only look on.
        promised: whether these are keys of specs.
        behind: of a source, the environments that it takes batches from.
    """

    place: int
    order: int
    name: str
    taken: Keys
    given: Keys
    function: bool
    promised: bool
    behind: tuple[weakref.ref[Any], ...] | None

    @property
    def flat(self) -> bool:
        """Whether these are keys of a frame, as an environment writes them: those under ``next`` without it."""
        return not any(isinstance(key, tuple) and key[0] == NEXT for key in self.taken | self.given)

    def drops(self, key: NestedKey) -> bool:
        """Whether it was given the key and did not give it on."""
        return any(one in self.taken and one not in self.given for one in self.names(key))

    def gives(self, key: NestedKey) -> bool:
        """Whether it had the key and gave it on."""
        return not self.promised and any(one in self.given for one in self.names(key))

    def names(self, key: NestedKey) -> tuple[NestedKey, ...]:
        """How it may have called the key."""
        return (key, bare(key)) if self.flat else (key,)


_stages: dict[int, dict[str, Stage]] = {}
_owners: dict[int, weakref.ref[Any]] = {}
_orders = count(1)
_latest = 0


def note_stage(
    owner: object,
    name: str,
    taken: Iterable[NestedKey],
    given: Iterable[NestedKey] | None = None,
    *,
    promised: bool = False,
    behind: Iterable[object] | None = None,
) -> None:
    """Remember which keys a stage was given and gave on, in place of what was noted of it before.

    Args:
        owner: has the stage; what is noted lives as long as it. One that cannot be referenced weakly is not noted.
        name: how messages call the stage, such as ``"the postproc of Collector"``.
        taken: keys that it was given.
        given: keys that it gave on; the same if None.
        promised: whether these are keys of specs. Who promises a key need not have had it.
        behind: of a source: the environments from which its batches come. Nothing else is looked for in front of it.

    Example:
        >>> from rl.core.provenance import fate_of
        >>> class Buffer: ...
        >>> buffer = Buffer()
        >>> note_stage(buffer, "the transform of Buffer", taken=["frame", "blur", "hue"], given=["frame", "hue"])
        >>> fate_of("blur", present=["frame", "hue"])
        'The transform of Buffer dropped it.'
        >>> del buffer
        >>> fate_of("blur", present=["frame", "hue"])
        ''
    """
    global _latest  # noqa: PLW0603  how `noted` knows whether there is anything new
    place = id(owner)
    if place not in _owners:
        try:
            _owners[place] = weakref.ref(owner, lambda _: _forget(place))
        except TypeError:
            return
    before = frozenset(unwrap(key) for key in taken)
    after = before if given is None else frozenset(unwrap(key) for key in given)
    sources = None if behind is None else tuple(_references(parts_of(behind)))
    _latest = next(_orders)
    stage = Stage(place, _latest, name, before, after, given is not None, promised, sources)
    _stages.setdefault(place, {})[name] = stage


def forget_stage(owner: object) -> None:
    """Forget what was noted of `owner`, which has become another."""
    _forget(id(owner))


def _forget(place: int) -> None:
    _owners.pop(place, None)
    _stages.pop(place, None)


def noted() -> int:
    """Grows with every stage that is noted: what was asked before need not be asked again."""
    return _latest


def in_order() -> list[Stage]:
    """All stages, the last noted one last."""
    # Copies made in one go: other threads note stages, and owners die, meanwhile.
    stages = [one for owned in list(_stages.values()) for one in list(owned.values())]
    return sorted(stages, key=lambda one: one.order)


def bare(key: NestedKey) -> NestedKey:
    """The key without ``next`` in front."""
    return unwrap(key[1:]) if isinstance(key, tuple) and key[0] == NEXT and len(key) > 1 else key


def parts_of(envs: Iterable[object]) -> list[object]:
    """Environments and those inside of them."""
    parts: dict[int, object] = {}
    waiting = list(envs)
    while waiting:
        env = waiting.pop()
        if env is None or id(env) in parts:
            continue
        parts[id(env)] = env
        held: dict[str, Any] = getattr(env, "__dict__", {})
        inner = held.get("envs")
        waiting += [held.get("base_env"), *(cast("list[object]", inner) if isinstance(inner, list | tuple) else ())]
    return list(parts.values())


def _references(things: Iterable[object]) -> Iterator[weakref.ref[Any]]:
    for thing in things:
        with suppress(TypeError):  # such as one with slots: it has no stages either
            yield weakref.ref(thing)
