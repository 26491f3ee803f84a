"""Keys of a recurrent module from its arguments `in_key`, `in_keys`, `out_key` and `out_keys`."""

from __future__ import annotations

from collections.abc import Sequence

from rl.core.errors import ContractError
from rl.core.keys import IS_INIT, NEXT, NestedKey, as_tuple, key_str, next_key
from rl.modules._keys import key_list

__all__ = ["recurrent_keys"]


def recurrent_keys(
    owner: str,
    parts: Sequence[str],
    in_key: NestedKey | None,
    in_keys: Sequence[NestedKey] | None,
    out_key: NestedKey | None,
    out_keys: Sequence[NestedKey] | None,
) -> tuple[list[NestedKey], list[NestedKey]]:
    """All input keys and all output keys.

    Args:
        owner: the component named in messages.
        parts: names of the states, ``("h", "c")``.
        in_key: key of the input; states and ``is_init`` have their default keys.
        in_keys: instead, keys of the input, the states, and of ``is_init`` if it is nested.
        out_key: key of the output; states are written under ``next``.
        out_keys: instead, keys of the output and the states.

    Raises:
        ContractError: if both or none of a pair are given, their number is wrong, or states are written elsewhere.
    """
    for one, many, names in ((in_key, in_keys, "in_key"), (out_key, out_keys, "out_key")):
        if (one is None) == (many is None):
            raise ContractError(f"{owner} takes either {names}= or {names}s=, got {one!r} and {many!r}")
    states: list[NestedKey] = [("recurrent_state", part) for part in parts]
    reads = [*key_list([in_key]), *states] if in_keys is None else key_list(in_keys)
    if in_keys is None and out_keys is not None and len(out_keys) == len(parts) + 1:
        states = [_root(key, owner) for key in key_list(out_keys)[1:]]
        reads = [reads[0], *states]
    if len(reads) == len(parts) + 1:
        reads = [*reads, IS_INIT]
    if len(reads) != len(parts) + 2 or as_tuple(reads[-1])[-1] != IS_INIT:
        raise ContractError(
            f"{owner} reads its input, {_listed(parts)}, and {IS_INIT!r}: in_keys has {len(parts) + 1} or"
            f" {len(parts) + 2} entries, the last of the longer form ending in {IS_INIT!r}; got {in_keys}"
        )
    states = reads[1:-1]
    _refuse_twice(owner, "in_keys", reads)
    writes = [*key_list([out_key]), *map(next_key, states)] if out_keys is None else key_list(out_keys)
    if writes[1:] != [next_key(state) for state in states]:
        expected = ", ".join(key_str(next_key(state)) for state in states)
        raise ContractError(
            f"{owner} reads its states under {', '.join(map(key_str, states))} and writes them under {expected}, which"
            f" move to the root of the next step; got out_keys {writes}"
        )
    if writes[0] in reads[1:]:
        raise ContractError(
            f"{owner} would write its output over {key_str(writes[0])}, which it reads as a state or ``is_init``: give"
            " the output another key with out_key="
        )
    return reads, writes


def _refuse_twice(owner: str, what: str, keys: Sequence[NestedKey]) -> None:
    for place, key in enumerate(keys):
        if key in keys[:place]:
            raise ContractError(
                f"{owner}: {what} has {key_str(key)} twice: input and states need keys of their own, got {list(keys)}"
            )


def _root(key: NestedKey, owner: str) -> NestedKey:
    head, *rest = as_tuple(key)
    if head != NEXT or not rest:
        raise ContractError(f"{owner} writes states under {NEXT!r}, for the following step; got {key_str(key)}")
    return tuple(rest) if len(rest) > 1 else rest[0]


def _listed(parts: Sequence[str]) -> str:
    return f"{'states' if len(parts) > 1 else 'the state'} {' and '.join(parts)}"
