"""An environment driven by actions that are the same in every run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl.core.interfaces import Env
from rl.core.keys import NestedKey, as_tuple, unwrap
from rl.core.mdp import StepMDP, done_levels
from rl.core.testing.env._entries import spec_keys

__all__ = ["Course"]


class Course:
    """An environment, and the actions that it is given.

    Args:
        make_env: makes the environment.
        seed: of the actions.
    """

    def __init__(self, make_env: Callable[[], Env], seed: int) -> None:
        self.env = make_env()
        self.who = type(self.env).__name__
        self.advance = StepMDP.from_env(self.env)
        self.observation_keys = spec_keys(self.env.observation_spec)
        self.reward_keys = spec_keys(self.env.full_reward_spec)
        state = getattr(self.env, "full_state_spec", None)
        self.state_keys: list[NestedKey] = [] if state is None else spec_keys(state)
        self.done_keys = [unwrap((*level, "done")) for level in done_levels(spec_keys(self.env.full_done_spec))]
        self._generator = torch.Generator().manual_seed(seed)

    def __enter__(self) -> Course:
        return self

    def __exit__(self, *_: object) -> None:
        self.env.close()

    @property
    def one_level(self) -> bool:
        """Whether all done flags stand at the root, so that they belong to elements of the batch."""
        return self.done_keys == ["done"]

    def act(self) -> TensorDict:
        """Random actions."""
        return self.env.full_action_spec.rand(generator=self._generator)

    def over(self, entries: Any) -> bool:
        """Whether an episode has ended."""
        return any(bool(entries.get(key).any()) for key in self.done_keys)

    def per_element(self, flag: Tensor) -> Tensor:
        """A done flag ``[*B, 1]`` as ``[*B]``."""
        return flag.flatten(len(self.env.batch_size)).any(-1)

    def mark_reset(self, root: TensorDictBase) -> TensorDictBase:
        """Mark what has ended for a reset."""
        for key in self.done_keys:
            root.set(unwrap((*as_tuple(key)[:-1], "_reset")), root.get(key).clone())
        return root

    def step(self, root: TensorDictBase, actions: TensorDict) -> tuple[TensorDictBase, TensorDictBase]:
        """The outcome of a step, and the following root, with finished episodes reset."""
        stepped, following = self.env.step_and_maybe_reset(root.update(actions.clone()))
        return stepped.get("next"), following
