"""An environment driven by actions that are the same in every run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl.core.interfaces import Env
from rl.core.keys import NestedKey, as_tuple, leaf_keys, unwrap
from rl.core.mdp import StepMDP, done_levels
from rl.core.testing._report import raising

__all__ = ["Course", "naming_calls"]

_CALLS = ("load_state_dict", "lowered", "reset", "set_seed", "state_dict", "step", "step_and_maybe_reset")


class _NamedCalls:
    """An environment whose exceptions name it, the call and the number of steps so far."""

    def __init__(self, env: Env) -> None:
        self._env, self._steps = env, 0

    def __getattr__(self, name: str) -> Any:
        value: Any = getattr(self._env, name)
        if name not in _CALLS:
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            what = f"{name}, after {self._steps} steps,"
            self._steps += name.startswith("step")
            with raising(what, self.owner):
                return value(*args, **kwargs)

        return call

    @property
    def owner(self) -> str:
        """The environment's class."""
        return type(self._env).__name__


def naming_calls(make_env: Callable[[], Env]) -> Callable[[], Any]:
    """`make_env`, of environments whose exceptions are `CheckError`."""
    return lambda: _NamedCalls(make_env())


class Course:
    """An environment, and the actions that it is given.

    Args:
        make_env: made by `naming_calls`.
        seed: of the actions.
    """

    def __init__(self, make_env: Callable[[], Any], seed: int) -> None:
        self.env = make_env()
        self.owner: str = self.env.owner
        self.advance = StepMDP.from_env(self.env)
        self.observation_keys = leaf_keys(self.env.observation_spec)
        self.reward_keys = leaf_keys(self.env.full_reward_spec)
        state = getattr(self.env, "full_state_spec", None)
        self.state_keys: list[NestedKey] = [] if state is None else leaf_keys(state)
        levels = done_levels(leaf_keys(self.env.full_done_spec))
        self.done_keys = [unwrap((*level, "done")) for level in (levels[:1] if () in levels else levels)]
        """Flags that end an episode: that of the root, if there is one."""
        self._seed, self._generator = seed, torch.Generator()
        self.rewind()

    def __enter__(self) -> Course:
        return self

    def __exit__(self, *_: object) -> None:
        self.env.close()

    @property
    def one_level(self) -> bool:
        """Whether episodes are ended by the flag at the root, or by those of the only group."""
        return len(self.done_keys) == 1

    @property
    def level(self) -> tuple[str, ...]:
        """Where the flags that end episodes are, if it is one level."""
        return as_tuple(self.done_keys[0])[:-1]

    def at_level(self, name: str) -> NestedKey:
        """A key beside the flags that end episodes."""
        return unwrap((*self.level, name))

    def rewind(self) -> None:
        """Draw the same random numbers for actions again."""
        self._generator.manual_seed(self._seed)

    def act(self) -> TensorDict:
        """Random actions."""
        return self.env.full_action_spec.rand(generator=self._generator)

    def over(self, entries: Any) -> bool:
        """Whether an episode has ended."""
        return any(bool(entries.get(key).any()) for key in self.done_keys)

    def per_element(self, flag: Tensor) -> Tensor:
        """A done flag ``[*B, 1]``, or one for each agent of a group ``[*B, n, 1]``, as ``[*B]``."""
        return flag.flatten(len(self.env.batch_size)).any(-1)

    def per_episode(self, flag: Tensor) -> Tensor:
        """A done flag as ``[*B]``, that of a group as ``[*B, n]``."""
        return flag.any(-1) if self.level else self.per_element(flag)

    def of_entry(self, flag: Tensor, key: NestedKey, value: Tensor) -> Tensor:
        """A done flag for an entry: for each agent ``[*B, n]`` if the entry is one of the group, else ``[*B]``."""
        episodes = self.per_episode(flag)
        own = as_tuple(key)[: len(self.level)] == self.level and value.shape[: episodes.ndim] == episodes.shape
        return episodes if own else self.per_element(flag)

    def first_element(self, root: TensorDictBase) -> Tensor:
        """The mask of a reset of the first element of the batch, all agents of it."""
        mask = torch.zeros_like(root.get(self.done_keys[0]))
        mask.view(self.env.batch_size.numel(), -1)[0] = True
        return mask

    def mark_reset(self, root: TensorDictBase) -> TensorDictBase:
        """Mark what has ended for a reset."""
        for key in self.done_keys:
            root.set(unwrap((*as_tuple(key)[:-1], "_reset")), root.get(key).clone())
        return root

    def step(self, root: TensorDictBase, actions: TensorDict) -> tuple[TensorDictBase, TensorDictBase]:
        """The outcome of a step, and the following root, with finished episodes reset."""
        stepped, following = self.env.step_and_maybe_reset(root.update(actions.clone()))
        return stepped.get("next"), following
