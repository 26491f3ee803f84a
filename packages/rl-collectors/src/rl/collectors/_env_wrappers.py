"""Wrappers of environments in the loops: groups, the limit of episodes, and recurrent states.

The number of frames of the running episode is the private root entry ``_frames``, so that it is saved, restored and
reset with the root.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.collectors._recurrent_state import RecurrentStates
from rl.collectors._trajectories import any_flag
from rl.core.interfaces import Env, LeafEnv, Leaves
from rl.core.keys import DONE, IS_INIT, NEXT, RESET, TRUNCATED, NestedKey, as_tuple, leaf_keys, next_key
from rl.core.mdp import StepMDP, done_levels, merge_reset
from rl.core.recurrent import State

ENDED = "_ended"
"""Private entry: whether any flag of an element is set, bool ``[*B, 1]``."""


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


_FRAMES = "_frames"


class LimitedLeaves:
    """`LeafEnv` whose episodes are truncated after some steps.

    Args:
        env: The environment's leaf form.
        limit: Maximum number of steps of an episode.
    """

    def __init__(self, env: LeafEnv, limit: int) -> None:
        self.batch_size = env.batch_size
        self._env, self._limit = env, limit

    def reset_leaves(self, current: Leaves | None = None, mask: Tensor | None = None) -> Leaves:
        """Return the root of the environment, and zero frames where it was reset."""
        root = self._env.reset_leaves(current, mask)
        known = None if current is None else current.get(_FRAMES)
        root[_FRAMES] = _zeros(root[DONE]) if mask is None or known is None else known.masked_fill(mask, 0)
        return root

    def step_leaves(self, root: Leaves) -> Leaves:
        """Step the environment, and truncate episodes at the limit."""
        outcome = self._env.step_leaves(root)
        outcome.update(_limit_flags(outcome[DONE], outcome[TRUNCATED], root.get(_FRAMES), self._limit))
        return outcome


class LimitedEnv:
    """`Env` whose episodes are truncated after some steps, for the TensorDict loop.

    Args:
        env: The environment.
        limit: Maximum number of steps of an episode.
    """

    def __init__(self, env: Env, limit: int) -> None:
        self.batch_size = env.batch_size
        self._env, self._limit = env, limit
        state = getattr(env, "full_state_spec", None)
        self._following = StepMDP(
            reward_keys=leaf_keys(env.full_reward_spec),
            done_keys=leaf_keys(env.full_done_spec),
            action_keys=leaf_keys(env.full_action_spec),
            state_keys=() if state is None else leaf_keys(state),
            exclude_action=True,
        )

    def reset(self) -> TensorDictBase:
        """Return the root of the environment, and zero frames."""
        td = self._env.reset()
        return td.set(_FRAMES, _zeros(td.get(DONE)))

    def step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """Step the environment, truncate episodes at the limit, and reset done elements."""
        stepped = self._env.step(tensordict)
        nxt: TensorDictBase = stepped.get(NEXT)
        for key, leaf in _limit_flags(
            nxt.get(DONE), nxt.get(TRUNCATED), tensordict.get(_FRAMES, None), self._limit
        ).items():
            nxt.set(key, leaf)
        done: Tensor = nxt.get(DONE)
        if not bool(done.any()):
            return stepped, self._following(stepped)
        stepped = stepped.clone()  # the reset may write into the environment's buffers
        root = self._following(stepped).clone()
        root.update(self._env.reset(root.copy().set(RESET, done.clone())))
        root.set(_FRAMES, stepped.get((NEXT, _FRAMES)).masked_fill(done, 0))
        return stepped, root.exclude(RESET)


def _zeros(flag: Tensor) -> Tensor:
    return torch.zeros_like(flag, dtype=torch.int64)


def _limit_flags(done: Tensor, truncated: Tensor, frames: Tensor | None, limit: int) -> dict[NestedKey, Tensor]:
    """Return the flags, and the number of frames of the episode with this step.

    A root that was saved without a limit has no count: it begins at zero there.
    """
    count = (_zeros(done) if frames is None else frames) + 1
    cut = (count >= limit) & ~done  # an episode that ends by itself keeps its flags
    return {DONE: done | cut, TRUNCATED: truncated | cut, _FRAMES: count}


class EpisodeStart:
    """Writer of initial states and ``is_init`` where episodes begin."""

    def __init__(self, recurrent: RecurrentStates, batch_size: torch.Size) -> None:
        self._states: Sequence[State] = recurrent.own
        self._marks = recurrent.marks
        self._size = batch_size

    def all(self, done_like: Tensor) -> Leaves:
        """Return the entries after a reset of all elements."""
        device = done_like.device
        root: Leaves = {state.name: state.start(self._size, device) for state in self._states}
        if self._marks:
            root[IS_INIT] = torch.ones_like(done_like)
        return root

    def some(self, current: Any, mask: Tensor) -> Leaves:
        """Return the entries after a reset of the elements in `mask` ``[*B, 1]``; the others keep `current`."""
        root: Leaves = {}
        for state in self._states:
            wide = mask.reshape(*self._size, *[1] * len(state.shape))
            root[state.name] = current[state.name].masked_fill(wide, state.initial)
        if self._marks:
            root[IS_INIT] = mask.clone()
        return root


class RecurrentLeaves:
    """`LeafEnv` whose resets also write the initial recurrent states.

    Args:
        env: The environment's leaf form.
        recurrent: Recurrent states to write.
    """

    def __init__(self, env: LeafEnv, recurrent: RecurrentStates) -> None:
        self.batch_size = env.batch_size
        self._env = env
        self._marks = recurrent.marks
        self._start = EpisodeStart(recurrent, env.batch_size)

    def reset_leaves(self, current: Leaves | None = None, mask: Tensor | None = None) -> Leaves:
        """Return the root of the environment with the initial states and ``is_init``."""
        root = self._env.reset_leaves(current, mask)
        if mask is None or current is None:
            root.update(self._start.all(root[DONE]))
        else:
            root.update(self._start.some(current, mask))
        return root

    def step_leaves(self, root: Leaves) -> Leaves:
        """Step the environment; ``is_init`` is false under ``next``."""
        outcome = self._env.step_leaves(root)
        if self._marks:
            outcome[IS_INIT] = torch.zeros_like(outcome[DONE])
        return outcome


class RecurrentEnv:
    """`Env` whose resets also write the initial recurrent states, for the TensorDict loop.

    Args:
        env: The environment.
        recurrent: Recurrent states to write.
    """

    def __init__(self, env: Env, recurrent: RecurrentStates) -> None:
        self.batch_size = env.batch_size
        self._env = env
        self._own, self._marks = recurrent.own, recurrent.marks
        self._start = EpisodeStart(recurrent, env.batch_size)

    def reset(self) -> TensorDictBase:
        """Return the root of the environment with the initial states and ``is_init``."""
        td = self._env.reset()
        return _put(td, self._start.all(td.get(DONE)))

    def step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """Step the environment and reset done elements; the other states are copied from ``next``."""
        after: Leaves = {state.name: tensordict.get(next_key(state.name)) for state in self._own}
        stepped, root = self._env.step_and_maybe_reset(tensordict)
        done: Tensor = stepped.get((NEXT, DONE))
        for key, value in after.items():
            stepped.set(next_key(key), value)
        if self._marks:
            stepped.set(next_key(IS_INIT), torch.zeros_like(done))
        return stepped, _put(root, self._start.some(after, done))


def _put(td: TensorDictBase, entries: Leaves) -> TensorDictBase:
    for key, value in entries.items():
        td.set(key, value)
    return td
