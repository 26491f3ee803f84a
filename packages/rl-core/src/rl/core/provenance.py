"""Which stage of a pipeline had a key last, and which one dropped it; kept so that errors can name them.

Whatever takes a batch and gives one on (the postproc of a collector, the transforms of an environment or of a buffer)
notes once which keys it was given and which it gave. That costs nothing afterwards, and is forgotten with its owner.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, cast

from rl.core.keys import NEXT, NestedKey, next_key, unwrap

__all__ = ["fate_of", "forget_stage", "keys_in", "note_stage", "noted", "through"]

_Keys = frozenset[NestedKey]


@dataclass(frozen=True, eq=False)
class _Stage:
    place: int
    order: int
    name: str
    taken: _Keys
    given: _Keys
    function: bool
    promised: bool
    behind: tuple[weakref.ref[Any], ...] | None

    @property
    def flat(self) -> bool:
        """Whether these are keys of a frame, as an environment writes them: those under ``next`` without it."""
        return not any(isinstance(key, tuple) and key[0] == NEXT for key in self.taken | self.given)

    def drops(self, key: NestedKey) -> bool:
        return any(one in self.taken and one not in self.given for one in self.names(key))

    def gives(self, key: NestedKey) -> bool:
        return not self.promised and any(one in self.given for one in self.names(key))

    def names(self, key: NestedKey) -> tuple[NestedKey, ...]:
        return (key, _bare(key)) if self.flat else (key,)


_ALIKE = 0.5  # of keys that batches of one pipeline share at least

_stages: dict[int, dict[str, _Stage]] = {}
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
        >>> class Buffer: ...
        >>> buffer = Buffer()
        >>> note_stage(buffer, "the transform of Buffer", taken=["action", "is_init"], given=["action"])
        >>> fate_of("is_init", present=["action"])
        'The transform of Buffer dropped it.'
        >>> del buffer
        >>> fate_of("is_init", present=["action"])
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
    sources = None if behind is None else tuple(_references(_parts_of(behind)))
    _latest = next(_orders)
    stage = _Stage(place, _latest, name, before, after, given is not None, promised, sources)
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


def fate_of(key: NestedKey, present: Iterable[NestedKey], *, within: Iterable[object] | None = None) -> str:
    """What became of a key that a batch lacks, in a sentence; nothing if no stage has seen it.

    A batch does not carry where it came from; its keys tell. It came from the stage that gave the keys most like its
    own. What is in front of a stage is known within one owner and behind a source. Elsewhere it is the last stage noted
    before it that gave the keys which this one took, or nearly all of them; that of a source if there is one. Stages
    unlike the batch are of another pipeline; if several pipelines are alike, that is said.

    Args:
        key: the one that is absent.
        present: the keys that are there.
        within: the environments in which it has to have been dropped, where they are known. What had the key last is
            not said then.
    """
    wanted, here = unwrap(key), frozenset(unwrap(one) for one in present)
    stages = _in_order()
    if within is not None:
        places = {id(part) for part in _parts_of(within)}
        return _said(_droppers([one for one in stages if one.place in places], wanted))
    if _twin(wanted) in here:  # an environment wrote it, where it does: at the root, or under "next"
        stages = [one for one in stages if not one.flat]
    if not any(one.drops(wanted) or one.gives(wanted) for one in stages):
        return ""
    likeness = [_likeness(one, here) for one in stages]
    most = max(likeness)
    found: list[str] = []
    seen: set[_Stage] = set()
    dropped: _Keys = frozenset()
    for place in reversed(range(len(stages))):
        if most >= _ALIKE and likeness[place] == most and stages[place] not in seen:
            sentence, dropper, passed = _fate_on(_way_to(stages, place), stages, wanted)
            seen.update(passed)
            found.append(sentence)
            dropped |= dropper.taken - dropper.given if dropper is not None else frozenset()
    # Batches of a pipeline that kept the key look the same, too, once a user took it out.
    ends = {one.place: one for one in stages}.values()
    found += [
        _lost_behind(one, None)
        for one in ends
        if one not in seen and one.gives(wanted) and _is_more(one, here, dropped)
    ]
    return _one_or_other(list(dict.fromkeys(found)))


def _in_order() -> list[_Stage]:
    # Copies made in one go: other threads note stages, and owners die, meanwhile.
    stages = [one for owned in list(_stages.values()) for one in list(owned.values())]
    return sorted(stages, key=lambda one: one.order)


def _way_to(stages: list[_Stage], place: int) -> list[_Stage]:
    """The stages that a batch came through to the one at `place`, which is the first of them."""
    way = [stages[place]]
    while True:
        last = way[-1]
        before = [one for one in stages if one.order < last.order]
        own = [one for one in before if one.place == last.place]
        if own:
            way.append(own[-1])
        elif last.behind is not None:
            places = {id(part) for ref in last.behind if (part := ref()) is not None}
            return [*way, *(one for one in reversed(stages) if one.place in places)]
        else:
            alike = [one for one in before if _overlap(one, last.taken) >= _ALIKE]
            if not alike:
                return way
            sources = {one.place for one in stages if one.behind is not None}
            alike = [one for one in alike if one.place in sources] or alike
            way.append(max(alike, key=lambda one: (-_from_elsewhere(one, last), one.order)))


def _from_elsewhere(stage: _Stage, behind: _Stage) -> int:
    """How many keys the stage behind took that this one did not give."""
    return len((_frame(behind.taken) if stage.flat else behind.taken) - stage.given)


def _is_more(stage: _Stage, present: _Keys, dropped: _Keys) -> bool:
    """Whether a stage gave what is present, and besides only what was dropped."""
    return present < stage.given and stage.given - present <= dropped


def _fate_on(way: list[_Stage], stages: list[_Stage], wanted: NestedKey) -> tuple[str, _Stage | None, list[_Stage]]:
    """What became of the key on the way, the stage that dropped it, and the stages that this is about."""
    for place, stage in enumerate(way):
        if stage.drops(wanted):
            inside = _inside(stage, stages, wanted)
            owners = {one.place for one in [*inside, stage]}
            own = [one for one in stages if one.place in owners]
            return _said([one.name for one in [*inside, stage]]), stage, [*way[:place], *own]
        if stage.gives(wanted):
            return _lost_behind(stage, way[place - 1] if place else None), None, way
    return "", None, way


def _inside(stage: _Stage, stages: list[_Stage], wanted: NestedKey) -> list[_Stage]:
    """Those that dropped it within `stage`, such as the parts of the composition that its function is."""
    before = [one.order for one in stages if one.place == stage.place and one.order < stage.order]
    between = [one for one in stages if before and before[-1] < one.order < stage.order]
    return [one for one in between if one.drops(wanted) and _overlap(one, stage.given) >= _ALIKE]


def _droppers(stages: list[_Stage], wanted: NestedKey) -> list[str]:
    """Names of the last that dropped it, and of those directly before that did, too."""
    names: list[str] = []
    for one in reversed(stages):
        if one.drops(wanted):
            names.append(one.name)
        elif names:
            break
    return names[::-1]


def _likeness(stage: _Stage, present: _Keys) -> float:
    """Keys that the stage gave and are there, of those that either has (Jaccard index)."""
    other = _frame(present) if stage.flat else present
    return len(stage.given & other) / max(1, len(stage.given | other))


def _overlap(stage: _Stage, present: _Keys) -> float:
    """Shared keys, of those that the smaller one has."""
    one, other = stage.taken | stage.given, _frame(present) if stage.flat else present
    return len(one & other) / max(1, min(len(one), len(other)))


def _frame(keys: _Keys) -> _Keys:
    return frozenset(_bare(key) for key in keys)


def _bare(key: NestedKey) -> NestedKey:
    return unwrap(key[1:]) if isinstance(key, tuple) and key[0] == NEXT and len(key) > 1 else key


def _twin(key: NestedKey) -> NestedKey:
    """The key at the root of one under ``next``, and the other way round."""
    bare = _bare(key)
    return next_key(key) if bare == key else bare


def _parts_of(envs: Iterable[object]) -> list[object]:
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


def _said(names: list[str]) -> str:
    return f"{_sentence(' and '.join(names))} dropped it." if names else ""


def _lost_behind(holder: _Stage, behind: _Stage | None) -> str:
    if behind is not None:
        return f"{_sentence(holder.name)} had it, and {behind.name} was not given it: it was dropped in between."
    if holder.function:
        first = f"{_sentence(holder.name)} gave it on in its first batch:"
        return f"{first} it dropped it later, or what came behind."
    return f"{_sentence(holder.name)} had it: what came behind dropped it."


def _one_or_other(said: list[str]) -> str:
    """One sentence for each of several pipelines that are alike; nothing if no one had the key."""
    spoken = [one for one in said if one]
    if len(said) < 2 or not spoken:
        return "".join(spoken)
    if not said[0]:
        first = f"In a pipeline with these keys {_inner(spoken[0]).removesuffix('.')}"
        return f"{first}; in one that was noted later nobody had it."
    others = [f"Another pipeline is alike: if the batch came from there, {_inner(one)}" for one in spoken[1:]]
    if len(spoken) < len(said):
        others.append("Another pipeline is alike: if the batch came from there, nobody had it.")
    return " ".join([spoken[0], *others])


def keys_in(entries: Any) -> list[NestedKey]:
    """The leaf keys of a TensorDict or of specs, or the keys of a dict; none of anything else."""
    from tensordict import is_leaf_nontensor, is_tensor_collection

    from rl.core.specs import Composite

    if isinstance(entries, dict):
        return [unwrap(key) for key in cast("dict[Any, Any]", entries) if _is_key(key)]
    if isinstance(entries, Composite):
        return [unwrap(key) for key in entries.keys(include_nested=True, leaves_only=True)]
    if not is_tensor_collection(entries):
        return []
    found = entries.keys(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor)
    return [unwrap(key) for key in found]


def _is_key(key: Any) -> bool:
    return isinstance(key, str) or (
        isinstance(key, tuple) and len(key) > 0 and all(isinstance(one, str) for one in key)
    )


def through(
    owner: object,
    stages: Iterable[tuple[str, Callable[[Any], Any]]],
    entries: Any,
    *,
    promised: bool = False,
    behind: Iterable[object] | None = None,
) -> Any:
    """`entries` through functions in a row, each of which is noted.

    Args:
        owner: has the functions.
        stages: names and functions.
        entries: what the first of them gets: a TensorDict, specs, or a dict by flat key.
        promised: see `note_stage`.
        behind: see `note_stage`.
    """
    behind = None if behind is None else list(behind)
    for name, function in stages:
        taken = keys_in(entries)
        entries = function(entries)
        note_stage(owner, name, taken, keys_in(entries), promised=promised, behind=behind)
    return entries


def _sentence(name: str) -> str:
    return name[:1].upper() + name[1:]


def _inner(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:] if sentence.startswith(("The ", "Transform ", "What ")) else sentence
