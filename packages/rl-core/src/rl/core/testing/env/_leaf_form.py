"""The leaf form of an environment against its TensorDict form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rl.core.interfaces import Leaves
from rl.core.keys import key_str, leaf_keys
from rl.core.mdp import StepMDP
from rl.core.testing._report import require, require_same, same_values

__all__ = ["check_leaf_form"]


def check_leaf_form(make_env: Callable[[], Any], seed: int, steps: int) -> None:
    """The leaf form gives the numbers of the TensorDict form, in tensors of its own."""
    env, generic = make_env(), make_env()
    owner = env.owner
    try:
        lower = getattr(env, "lowered", None)
        leaf = lower() if lower is not None else None
        if leaf is None:
            return
        members = ("batch_size", "reset_leaves", "step_leaves")
        absent = [name for name in members if not hasattr(leaf, name)]
        require(
            not absent, f"lowered returned a {type(leaf).__name__}, which lacks {', '.join(absent)} of LeafEnv", owner
        )
        require(leaf.batch_size == env.batch_size, "the leaf form has another batch size", owner)
        generator = torch.Generator().manual_seed(seed)
        env.set_seed(seed)
        generic.set_seed(seed)
        advance = StepMDP(
            reward_keys=leaf_keys(env.full_reward_spec),
            done_keys=leaf_keys(env.full_done_spec),
            action_keys=leaf_keys(env.full_action_spec),
        )
        root: Leaves = leaf.reset_leaves()
        td = generic.reset()
        require_same(td, root, "reset and reset_leaves differ", owner)
        kept: list[Leaves] = [root]
        plain = "done" in leaf_keys(env.full_done_spec)
        for _ in range(min(steps, 30)):
            action = env.full_action_spec.rand(generator=generator)
            root = {**root, **{key: action.get(key) for key in leaf_keys(env.full_action_spec)}}
            outcome = leaf.step_leaves(root)
            _check_own(outcome, kept, owner)
            kept.append(outcome)
            stepped, td = generic.step_and_maybe_reset(td.update(action))
            require_same(stepped.get("next"), outcome, "step and step_leaves differ", owner)
            root = advance.leaves(root, outcome)
            if plain and bool(outcome["done"].any()):
                root = leaf.reset_leaves(root, outcome["done"])
                kept.append(root)
            elif not plain and any(bool(outcome[key].any()) for key in leaf_keys(env.full_done_spec)):
                return  # a mask at the root cannot say which of several levels has ended
            for key in leaf_keys(env.observation_spec):
                require(
                    same_values(td.get(key), root[key]), f"after step and reset_leaves, {key_str(key)} differs", owner
                )
    finally:
        env.close()
        generic.close()


def _check_own(outcome: Leaves, kept: list[Leaves], owner: str) -> None:
    """Assert that no tensor shares memory with another one that was handed out."""
    seen = {_place(value): key for leaves in kept for key, value in leaves.items() if value.numel()}
    for key, value in outcome.items():
        if not value.numel():
            continue
        other = seen.get(_place(value))
        named = "" if other is None else key_str(other)
        require(
            other is None,
            f"{key_str(key)} shares its memory with {named}, handed out before it; every tensor must be new",
            f"{owner}.step_leaves",
        )
        seen[_place(value)] = key


def _place(value: Tensor) -> int:
    return value.data_ptr()
