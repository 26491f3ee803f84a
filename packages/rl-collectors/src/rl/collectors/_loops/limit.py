"""Limit of the length of episodes, for both kinds of loops.

The number of frames of the running episode is the private root entry ``_frames``, so that it is saved, restored and
reset with the root.
"""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.collectors._loops.leaves import LeafAct, LeafStep
from rl.core.errors import ContractError
from rl.core.interfaces import Env, LeafEnv, Leaves
from rl.core.keys import DONE, NEXT, RESET, TRUNCATED, NestedKey, key_str, leaf_keys, next_key
from rl.core.mdp import StepMDP

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
        outcome.update(_limited(outcome[DONE], outcome[TRUNCATED], root.get(_FRAMES), self._limit))
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
        for key, leaf in _limited(
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


def _limited(done: Tensor, truncated: Tensor, frames: Tensor | None, limit: int) -> dict[NestedKey, Tensor]:
    """Return the flags, and the number of frames of the episode with this step.

    A root that was saved without a limit has no count: it begins at zero there.
    """
    count = (_zeros(done) if frames is None else frames) + 1
    cut = (count >= limit) & ~done  # an episode that ends by itself keeps its flags
    return {DONE: done | cut, TRUNCATED: truncated | cut, _FRAMES: count}


class ActProbe:
    """Wrapper of a policy that copies its outputs and records their memory.

    Args:
        act: The policy.
    """

    def __init__(self, act: LeafAct) -> None:
        self._act = act
        self._seen: list[Leaves] = []

    def __call__(self, root: Leaves) -> Leaves | None:
        before = root.copy()
        extra = self._act(root) or {}
        written = {key: leaf for key, leaf in root.items() if before.get(key) is not leaf}
        self._seen.append({**written, **{next_key(key): leaf for key, leaf in extra.items()}})
        root.update({key: leaf.clone() for key, leaf in written.items()})
        return {key: leaf.clone() for key, leaf in extra.items()} or None

    def settle(self) -> LeafAct | None:
        """Return, after two steps, the policy itself, or with copies of reused entries; None before."""
        if len(self._seen) < 2:
            return None
        reused = _same_memory(*self._seen[-2:])
        act = self._act
        if not reused:
            return act

        def copying(root: Leaves) -> Leaves | None:
            extra = act(root)
            for key in reused:
                if key in root:
                    root[key] = root[key].clone()
            return extra and {k: leaf.clone() if next_key(k) in reused else leaf for k, leaf in extra.items()}

        return copying


class StepProbe:
    """Wrapper of a step that refuses an environment whose leaf form returns the same memory twice.

    Args:
        step: Method `LeafEnv.step_leaves`.
        owner: Name of the environment, for messages.
    """

    def __init__(self, step: LeafStep, owner: str) -> None:
        self._step, self._owner = step, owner
        self._last: Leaves = {}
        self._copies: Leaves = {}

    def __call__(self, root: Leaves) -> Leaves:
        nxt = self._step(root)
        kept = self._last
        # constants (flags that are rarely set) may share memory: what counts is that kept values stay
        reused = [key for key in _same_memory(kept, nxt) if not torch.equal(kept[key], self._copies[key])]
        if reused:
            raise ContractError(
                f"{self._owner}.step_leaves returned {', '.join(map(key_str, reused))} in the memory of the previous"
                " step, which the collector still holds: return new tensors (clone them), or offer no lowered()"
            )
        self._last, self._copies = nxt, {key: leaf.clone() for key, leaf in nxt.items()}
        return nxt


def _same_memory(one: Leaves, other: Leaves) -> list[NestedKey]:
    return [
        key for key, leaf in other.items() if key in one and leaf.numel() and leaf.data_ptr() == one[key].data_ptr()
    ]
