"""Runs of an environment for its checks: the driver and the leaf form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl.core.interfaces import Env, Leaves
from rl.core.keys import NestedKey, as_tuple, key_str, leaf_keys, unwrap
from rl.core.mdp import StepMDP, done_levels
from rl.testing._report import fail, require, require_same, same_values


class EnvStep(NamedTuple):
    """Copies of what one step read and wrote, and what was returned itself."""

    root: TensorDictBase  # with the actions
    outcome: TensorDictBase
    following: TensorDictBase  # with finished episodes reset
    returned: tuple[TensorDictBase, TensorDictBase]  # outcome and following, in the tensors of the environment


class EnvDriver:
    """An environment, and the actions that it is given.

    Args:
        env: Environment; closed at the end of a ``with`` block.
        seed: Seed of the actions.
    """

    def __init__(self, env: Env, seed: int) -> None:
        self.env: Any = env
        self.owner = type(env).__name__
        self.advance = StepMDP.from_env(env)
        self.observation_keys = leaf_keys(env.observation_spec)
        self.action_keys, self.reward_keys = leaf_keys(env.full_action_spec), leaf_keys(env.full_reward_spec)
        levels = done_levels(leaf_keys(env.full_done_spec))
        self.done_keys = [unwrap((*level, "done")) for level in (levels[:1] if () in levels else levels)]
        """Flags that end an episode: that of the root, if there is one."""
        self.one_level = len(self.done_keys) == 1
        """Whether episodes are ended by the flag at the root, or by those of the only group."""
        self.level = as_tuple(self.done_keys[0])[:-1]
        """Where the flags that end episodes are, if it is one level."""
        self._seed, self._generator = seed, torch.Generator()
        self.rewind()

    def __enter__(self) -> EnvDriver:
        return self

    def __exit__(self, *_: object) -> None:
        self.env.close()

    def rewind(self) -> None:
        """Draw the same random numbers for actions again."""
        self._generator.manual_seed(self._seed)

    def act(self) -> TensorDict:
        """Draw random actions when they are due: which are legal may depend on the state."""
        return self.env.full_action_spec.rand(generator=self._generator)

    def over(self, entries: Any) -> bool:
        """Whether an episode has ended."""
        return any(bool(entries.get(key).any()) for key in self.done_keys)

    def per_element(self, flag: Tensor) -> Tensor:
        """Return a done flag ``[*B, 1]``, or one for each agent of a group ``[*B, n, 1]``, as ``[*B]``."""
        return flag.flatten(len(self.env.batch_size)).any(-1)

    def per_episode(self, flag: Tensor) -> Tensor:
        """Return a done flag as ``[*B]``, that of a group as ``[*B, n]``."""
        return flag.any(-1) if self.level else self.per_element(flag)

    def of_entry(self, flag: Tensor, key: NestedKey, value: Tensor) -> Tensor:
        """Return a done flag for an entry: ``[*B, n]`` if the entry is one of the group of agents, else ``[*B]``."""
        episodes = self.per_episode(flag)
        own = as_tuple(key)[: len(self.level)] == self.level and value.shape[: episodes.ndim] == episodes.shape
        return episodes if own else self.per_element(flag)

    def first_element(self, root: TensorDictBase) -> Tensor:
        """Return the mask of a reset of the first element of the batch, all agents of it."""
        mask = torch.zeros_like(root.get(self.done_keys[0]))
        mask.view(self.env.batch_size.numel(), -1)[0] = True
        return mask

    def mark_reset(self, root: TensorDictBase, mask: Tensor | None = None) -> TensorDictBase:
        """Mark the elements of a mask for a reset, or those that have ended if it is None."""
        for key in self.done_keys:
            root.set(unwrap((*as_tuple(key)[:-1], "_reset")), (root.get(key) if mask is None else mask).clone())
        return root

    def step(self, root: TensorDictBase, actions: TensorDict) -> tuple[TensorDictBase, TensorDictBase]:
        """Return the outcome of a step, and the following root, with finished episodes reset."""
        stepped, following = self.env.step_and_maybe_reset(root.update(actions.clone()))
        return stepped.get("next"), following


def check_leaf_form(make_env: Callable[[], Any], run: list[EnvStep], seed: int) -> None:
    """Check that the leaf form returns the numbers of a run of the TensorDict form, in tensors of its own."""
    with EnvDriver(make_env(), seed) as driver:
        env, owner = driver.env, driver.owner
        leaf = env.lowered() if hasattr(env, "lowered") else None
        if leaf is None:
            return
        absent = [name for name in ("batch_size", "reset_leaves", "step_leaves") if not hasattr(leaf, name)]
        text = f"lowered returned a {type(leaf).__name__}, which lacks {', '.join(absent)} of LeafEnv"
        require(not absent, text, owner)
        require(leaf.batch_size == env.batch_size, "the leaf form has another batch size", owner)
        env.set_seed(seed)
        root: Leaves = leaf.reset_leaves()
        require_same(run[0].root.exclude(*driver.action_keys), root, "reset and reset_leaves differ", owner)
        kept: list[Leaves] = [root]
        for step in run:
            outcome = leaf.step_leaves({**root, **{key: step.root.get(key) for key in driver.action_keys}})
            _check_own(outcome, kept, owner)
            kept.append(outcome)
            require_same(step.outcome, outcome, "step and step_leaves differ", owner)
            root = driver.advance.leaves(root, outcome)
            if driver.over(outcome):
                if driver.done_keys != ["done"]:
                    return  # a mask at the root cannot say which of several levels has ended
                root = leaf.reset_leaves(root, outcome["done"])
                kept.append(root)
            for key in driver.observation_keys:
                text = f"after step and reset_leaves, {key_str(key)} differs"
                require(same_values(step.following.get(key), root[key]), text, owner)


def _check_own(outcome: Leaves, kept: list[Leaves], owner: str) -> None:
    """Assert that no tensor shares memory with another one that was handed out."""
    seen = {value.data_ptr(): key for leaves in kept for key, value in leaves.items() if value.numel()}
    for key, value in outcome.items():
        place = value.data_ptr()
        if value.numel() and place in seen:
            text = f"{key_str(key)} shares its memory with {key_str(seen[place])}; every tensor must be new"
            fail(text, f"{owner}.step_leaves")
        seen[place] = key
