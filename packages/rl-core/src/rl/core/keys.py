"""The standard keys of a TensorDict, and functions of keys.

A key is a string or a tuple of strings; `NestedKey` is the type of both. This module imports neither torch nor
tensordict.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from rl.core.errors import ArgumentError

__all__ = [
    "ACTION",
    "ACTION_LOG_PROB",
    "ACTION_VALUE",
    "ADVANTAGE",
    "BUFFER_KEYS",
    "CHOSEN_ACTION_VALUE",
    "DONE",
    "INDEX",
    "IS_INIT",
    "NEXT",
    "OBSERVATION",
    "PRIORITY_WEIGHT",
    "RESET",
    "REWARD",
    "STATE_ACTION_VALUE",
    "STATE_VALUE",
    "TD_ERROR",
    "TERMINATED",
    "TRAJ_IDS",
    "TRUNCATED",
    "VALUE_TARGET",
    "NestedKey",
    "as_tuple",
    "key_str",
    "leaf_keys",
    "nearest",
    "next_key",
    "unwrap",
]

NestedKey = str | tuple[str, ...]

NEXT = "next"
OBSERVATION = "observation"
ACTION = "action"
ACTION_LOG_PROB = "action_log_prob"
ACTION_VALUE = "action_value"
CHOSEN_ACTION_VALUE = "chosen_action_value"
STATE_VALUE = "state_value"
STATE_ACTION_VALUE = "state_action_value"
REWARD = "reward"
DONE = "done"
TERMINATED = "terminated"
TRUNCATED = "truncated"
RESET = "_reset"
IS_INIT = "is_init"
TRAJ_IDS = ("collector", "traj_ids")
INDEX = "index"
PRIORITY_WEIGHT = "priority_weight"
TD_ERROR = "td_error"
ADVANTAGE = "advantage"
VALUE_TARGET = "value_target"
BUFFER_KEYS: frozenset[NestedKey] = frozenset(
    {"gamma", "learning_mask", "priority_weight", "sequence_id", "steps_to_next_obs", "validity_mask"}
)
"""Entries that replay buffers write and losses read where they are present."""


def as_tuple(key: Iterable[str] | str) -> tuple[str, ...]:
    """Return the key as a tuple.

    Raises:
        ArgumentError: If it is neither a string nor a sequence.

    Example:
        >>> as_tuple("reward"), as_tuple(("next", "reward"))
        (('reward',), ('next', 'reward'))
    """
    if isinstance(key, str):
        return (key,)
    try:
        return tuple(key)
    except TypeError as error:
        raise ArgumentError(f"a key is a string or a tuple of strings, got {key!r}") from error


def unwrap(key: Iterable[str] | str) -> NestedKey:
    """Return the shortest form of a key: a string if it has one part, else a tuple.

    Raises:
        ArgumentError: If it is neither a string nor a sequence.

    Example:
        >>> unwrap(("reward",)), unwrap(["next", "reward"])
        ('reward', ('next', 'reward'))
    """
    if isinstance(key, str):
        return key
    parts = as_tuple(key)
    return parts[0] if len(parts) == 1 else parts


def next_key(key: NestedKey) -> tuple[str, ...]:
    """Return the key under `next`.

    Example:
        >>> next_key("reward")
        ('next', 'reward')
    """
    return (NEXT, *as_tuple(key))


def leaf_keys(entries: Any) -> list[NestedKey]:
    """Return the leaf keys of a TensorDict, a composite spec or a flat dict, each in its shortest form.

    Example:
        >>> from tensordict import TensorDict
        >>> leaf_keys(TensorDict(reward=0.0, next=TensorDict(reward=1.0)))
        ['reward', ('next', 'reward')]
    """
    keys: Any = entries if isinstance(entries, dict) else entries.keys(include_nested=True, leaves_only=True)
    return [unwrap(key) for key in keys]


def key_str(key: NestedKey) -> str:
    """Return the key as messages and tables print it.

    Example:
        >>> key_str("reward"), key_str(("next", "reward"))
        ("'reward'", "('next', 'reward')")
    """
    return repr(unwrap(key))


def nearest(key: NestedKey, candidates: Iterable[NestedKey]) -> NestedKey | None:
    """Return the candidate that a misspelt or misplaced key most likely meant, or None.

    In this order: a key of similar spelling in the same group, the same name in another group, a similar path.

    Example:
        >>> nearest("observation", ["action", "observatoin", ("next", "observation")])
        'observatoin'
        >>> nearest("reward", [("next", "reward"), "action"])
        ('next', 'reward')
    """
    by_text = {".".join(as_tuple(c)): c for c in candidates}
    wanted = ".".join(as_tuple(key))
    *group, leaf = as_tuple(key)
    neighbours = {as_tuple(c)[-1]: c for c in by_text.values() if list(as_tuple(c)[:-1]) == group and c != unwrap(key)}
    misspelt = get_close_matches(leaf, neighbours, n=1, cutoff=0.8)
    if misspelt:
        return neighbours[misspelt[0]]
    for text, candidate in by_text.items():
        if as_tuple(candidate)[-1] == leaf and text != wanted:
            return candidate
    close = get_close_matches(wanted, by_text, n=1, cutoff=0.6)
    return by_text[close[0]] if close else None
