"""Leaves of TensorDicts and specs by flat key, and the types of functions on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase, is_leaf_nontensor

from rl.core.interfaces import Leaves
from rl.core.keys import NestedKey
from rl.core.specs import Composite, group_sizes, set_group_sizes

__all__ = [
    "LeafAct",
    "LeafStep",
    "TensorDictAct",
    "TensorDictStep",
    "groups_of",
    "leaves_of",
    "tensordict_of",
]

LeafAct = Callable[[Leaves], Leaves | None]
"""Policy on leaves: writes its root entries into the root, and returns its entries under ``next``, or None."""

LeafStep = Callable[[Leaves], Leaves]
"""`LeafEnv.step_leaves`, possibly with checks or a clock."""

TensorDictAct = Callable[[TensorDictBase], TensorDictBase]
"""Policy that returns its argument, or another TensorDict, with the actions."""

TensorDictStep = Callable[[TensorDictBase], tuple[TensorDictBase, TensorDictBase]]
"""`Env.step_and_maybe_reset`, possibly with checks or a clock."""


def leaves_of(tensordict: TensorDictBase) -> Leaves:
    """Return the entries by flat key, including non-tensor data."""
    entries: Any = tensordict.items(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor)
    return dict(entries)


def groups_of(env: Any) -> dict[NestedKey, torch.Size]:
    """Return the batch sizes of the groups of an environment."""
    specs = [getattr(env, f"full_{part}_spec", None) for part in ("state", "action", "reward", "done")]
    return group_sizes(spec for spec in (env.observation_spec, *specs) if isinstance(spec, Composite))


def tensordict_of(leaves: Leaves, batch_size: Any, groups: Mapping[NestedKey, torch.Size]) -> TensorDict:
    """Return the TensorDict of leaves, with the batch sizes of `groups`: the inverse of `leaves_of`."""
    nested: dict[str, Any] = {}
    for key, leaf in leaves.items():
        if isinstance(key, str):
            nested[key] = leaf
            continue
        place = nested
        for part in key[:-1]:
            place = place.setdefault(part, {})
        place[key[-1]] = leaf
    out = TensorDict(nested, batch_size=batch_size)
    set_group_sizes(out, groups)
    return out
