"""Environments whose done flags are under groups only, such as ``("agents", "done")``, in the leaf loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from operator import or_

import torch
from torch import Tensor

from rl.core.interfaces import LeafEnv, Leaves
from rl.core.keys import NestedKey, as_tuple
from rl.core.mdp import done_levels, merge_reset

ENDED = "_ended"
"""Private entry: whether any flag of an element is set, bool ``[*B, 1]``."""


def any_flag(flags: Iterable[Tensor], dims: int) -> Tensor:
    """Return whether any of some flags is set, reduced to their first `dims` dimensions."""
    return torch.stack([flag.flatten(dims).any(-1) for flag in flags]).any(0)


class GroupLeaves:
    """`LeafEnv` that writes ``_ended`` in a step, and resets groups by their own flags.

    An element is reset if any of its flags is set. As in `EnvBase`, entries of a group then stay as they are where
    the group's flag is false.

    Args:
        env: The environment's leaf form.
        done_keys: Keys of all its flags.
    """

    def __init__(self, env: LeafEnv, done_keys: Iterable[NestedKey]) -> None:
        self.batch_size = env.batch_size
        self._env, self._keys = env, list(done_keys)
        self._levels = {
            level: [key for key in self._keys if as_tuple(key)[:-1] == level] for level in done_levels(self._keys)
        }

    def reset_leaves(self, current: Leaves | None = None, mask: Tensor | None = None) -> Leaves:
        """Return the root of the environment; of groups that are not done, that of `current`."""
        fresh = self._env.reset_leaves(current, mask)
        if mask is None or current is None:
            return fresh
        masks = {level: self._any(current, keys) for level, keys in self._levels.items()}
        return merge_reset(current, fresh, masks)

    def step_leaves(self, root: Leaves) -> Leaves:
        """Step the environment."""
        outcome = self._env.step_leaves(root)
        outcome[ENDED] = any_flag([outcome[key] for key in self._keys], len(self.batch_size)).unsqueeze(-1)
        return outcome

    @staticmethod
    def _any(leaves: Mapping[NestedKey, Tensor], keys: Iterable[NestedKey]) -> Tensor:
        return reduce(or_, [leaves[key] for key in keys])
