"""What became of a key, told from what stages noted; see `rl.core.provenance`."""

from __future__ import annotations

from collections.abc import Iterable

from rl.core._stages import Keys, Stage, bare, in_order, parts_of
from rl.core.keys import NestedKey, next_key, unwrap

__all__ = ["fate_of"]

_ALIKE = 0.5  # of keys that batches of one pipeline share at least


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
    stages = in_order()
    if within is not None:
        places = {id(part) for part in parts_of(within)}
        return _said(_droppers([one for one in stages if one.place in places], wanted))
    if _twin(wanted) in here:  # an environment wrote it, where it does: at the root, or under "next"
        stages = [one for one in stages if not one.flat]
    if not any(one.drops(wanted) or one.gives(wanted) for one in stages):
        return ""
    likeness = [_likeness(one, here) for one in stages]
    most = max(likeness)
    found: list[str] = []
    seen: set[Stage] = set()
    dropped: Keys = frozenset()
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


def _way_to(stages: list[Stage], place: int) -> list[Stage]:
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


def _from_elsewhere(stage: Stage, behind: Stage) -> int:
    """How many keys the stage behind took that this one did not give."""
    return len((_frame(behind.taken) if stage.flat else behind.taken) - stage.given)


def _is_more(stage: Stage, present: Keys, dropped: Keys) -> bool:
    """Whether a stage gave what is present, and besides only what was dropped."""
    return present < stage.given and stage.given - present <= dropped


def _fate_on(way: list[Stage], stages: list[Stage], wanted: NestedKey) -> tuple[str, Stage | None, list[Stage]]:
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


def _inside(stage: Stage, stages: list[Stage], wanted: NestedKey) -> list[Stage]:
    """Those that dropped it within `stage`, such as the parts of the composition that its function is."""
    before = [one.order for one in stages if one.place == stage.place and one.order < stage.order]
    between = [one for one in stages if before and before[-1] < one.order < stage.order]
    return [one for one in between if one.drops(wanted) and _overlap(one, stage.given) >= _ALIKE]


def _droppers(stages: list[Stage], wanted: NestedKey) -> list[str]:
    """Names of the last that dropped it, and of those directly before that did, too."""
    names: list[str] = []
    for one in reversed(stages):
        if one.drops(wanted):
            names.append(one.name)
        elif names:
            break
    return names[::-1]


def _likeness(stage: Stage, present: Keys) -> float:
    """Keys that the stage gave and are there, of those that either has (Jaccard index)."""
    other = _frame(present) if stage.flat else present
    return len(stage.given & other) / max(1, len(stage.given | other))


def _overlap(stage: Stage, present: Keys) -> float:
    """Shared keys, of those that the smaller one has."""
    one, other = stage.taken | stage.given, _frame(present) if stage.flat else present
    return len(one & other) / max(1, min(len(one), len(other)))


def _frame(keys: Keys) -> Keys:
    return frozenset(bare(key) for key in keys)


def _twin(key: NestedKey) -> NestedKey:
    """The key at the root of one under ``next``, and the other way round."""
    at_root = bare(key)
    return next_key(key) if at_root == key else at_root


def _said(names: list[str]) -> str:
    return f"{_sentence(' and '.join(names))} dropped it." if names else ""


def _lost_behind(holder: Stage, behind: Stage | None) -> str:
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


def _sentence(name: str) -> str:
    return name[:1].upper() + name[1:]


def _inner(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:] if sentence.startswith(("The ", "Transform ", "What ")) else sentence
