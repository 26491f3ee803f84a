"""`RewardSum`: the return of the episode so far."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.errors import ContractError, SpecError
from rl.core.keys import NestedKey, as_tuple, key_str, unwrap
from rl.core.specs import Unbounded
from rl.envs import _foreign
from rl.envs.base._specs import leaf_keys
from rl.envs.transforms._base import Transform
from rl.envs.transforms._checks import from_root
from rl.envs.transforms._specs import Specs

__all__ = ["RewardSum", "observe_rewards"]


@_foreign.reward_sum
class RewardSum(Transform):
    """Adds up rewards from the start of each episode, undiscounted.

    Reads ``("next", "reward")``; writes ``episode_reward`` at the root (rewards before the step) and under ``next``
    (with the step's), both with the shape and dtype of the reward.

    Args:
        in_keys: rewards, without ``next``; all of the environment if None. On a batch also with ``next``: then the sum
            with the step's reward is written to the out key alone.
        out_keys: where the sums go; ``episode_`` before the last part of each reward's key if None.

    Raises:
        SpecError: if the lists differ in length, or a reward does not exist.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> env = TransformedEnv(PendulumEnv(seed=0), RewardSum())
        >>> data = env.rollout(3)
        >>> bool(torch.isclose(data["next", "episode_reward"][-1], data["next", "reward"].sum()))
        True
    """

    leafwise: ClassVar[bool] = True

    def __init__(self, in_keys: Iterable[NestedKey] | None = None, out_keys: Iterable[NestedKey] | None = None) -> None:
        super().__init__()
        self.in_keys = ["reward"] if in_keys is None else [unwrap(key) for key in in_keys]
        self._every = in_keys is None
        self._named = None if out_keys is None else [unwrap(key) for key in out_keys]
        self._set_out_keys()

    def _set_out_keys(self) -> None:
        sums = [unwrap((*as_tuple(key)[:-1], f"episode_{as_tuple(key)[-1]}")) for key in self.in_keys]
        self.out_keys = sums if self._named is None else self._named
        if len(self.out_keys) != len(self.in_keys):
            raise SpecError(f"RewardSum has in_keys {self.in_keys} and out_keys {self.out_keys}: give one for each")

    def _reset(self, root: Any, mask: Tensor | None = None) -> Any:
        del mask
        for out, zero in self._zeros.items():
            root[out] = zero.clone()
        return root

    def _step(self, root: Any, outcome: Any) -> Any:
        for key, out in zip(self.in_keys, self.out_keys, strict=True):
            outcome[out] = from_root(root, out, self) + outcome[key]
        return outcome

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """The sums of a batch ``[*B, T]`` in time order; its first step counts as the start of an episode.

        Reads ``("next", reward)`` and ``("next", "done")``, writes the sums under ``next`` and at the root; for an in
        key with ``next``, those with the step's reward to its out key.

        Raises:
            ContractError: if one is missing.
        """
        out = tensordict.copy()
        outcome = out.get("next", None)
        for key, name in zip(self.in_keys, self.out_keys, strict=True):
            of_batch = as_tuple(key)[0] == "next"
            path = as_tuple(key)[1:] if of_batch else as_tuple(key)
            reward = None if outcome is None else outcome.get(path, None)
            done = None if outcome is None else outcome.get((*path[:-1], "done"), None)
            if reward is None or done is None:
                raise ContractError(f"RewardSum reads {('next', *path)} and the 'done' beside it in a batch")
            dim = tensordict.ndim - 1
            total = torch.zeros_like(reward.select(dim, 0))
            before, after = [], []
            for step, over in zip(reward.unbind(dim), done.unbind(dim), strict=True):
                before.append(total)
                after.append(total + step)
                total = torch.where(over, torch.zeros_like(total), after[-1])
            if not of_batch:
                out.set(name, torch.stack(before, dim))
            out.set(name if of_batch else ("next", *as_tuple(name)), torch.stack(after, dim))
        return out

    def transform_specs(self, specs: Specs) -> None:
        """Add the sums to the observation."""
        if self._every:
            self.in_keys = leaf_keys(specs.reward)
            self._set_out_keys()
        self._zeros: dict[NestedKey, Tensor] = observe_rewards(self, specs)


def observe_rewards(transform: Transform, specs: Specs) -> dict[NestedKey, Tensor]:
    """Add an observation like each reward that a transform reads, and return their zeros by out key.

    Raises:
        SpecError: if the environment lacks one of the rewards.
    """
    zeros: dict[NestedKey, Tensor] = {}
    for key, out in zip(transform.in_keys, transform.out_keys, strict=True):
        one = specs.reward.get(key, None)
        if one is None:
            raise SpecError(
                f"{type(transform).__name__} reads the reward {key_str(key)}; the environment's are"
                f" {leaf_keys(specs.reward)}"
            )
        spec = Unbounded(one.shape, dtype=one.dtype, device=one.device)
        specs.add("observation", out, spec, transform)
        zeros[out] = spec.expand(*specs.batch_size, *one.shape).zero()
    return zeros
