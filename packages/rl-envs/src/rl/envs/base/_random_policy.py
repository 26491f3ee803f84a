"""`RandomPolicy`: actions drawn from a spec."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.keys import NestedKey
from rl.core.specs import Composite, TensorSpec
from rl.envs.base._specs import leaf_keys

__all__ = ["RandomPolicy"]


class RandomPolicy:
    """Draws each action from its spec, whatever is observed. Reads nothing, writes the actions.

    Args:
        action_spec: with the batch, as ``env.action_spec`` is.
        action_key: of the action, if the spec is that of one action alone.

    Example:
        >>> from rl.envs import PendulumEnv
        >>> env = PendulumEnv()
        >>> env.rollout(3, policy=RandomPolicy(env.action_spec))["action"].shape
        torch.Size([3, 1])
    """

    in_keys: list[NestedKey]
    out_keys: list[NestedKey]

    def __init__(self, action_spec: TensorSpec, action_key: NestedKey = "action") -> None:
        if not isinstance(action_spec, Composite):
            action_spec = Composite({action_key: action_spec})
        self.action_spec = action_spec
        self.in_keys = []
        self.out_keys = leaf_keys(action_spec)

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        for key in self.out_keys:
            tensordict.set(key, self.action_spec[key].rand())
        return tensordict

    def lowered(self) -> RandomPolicy._Plain:
        """The plain form."""
        return RandomPolicy._Plain(self)

    class _Plain:
        """Actions in the order of `out_keys`, from no leaves at all."""

        def __init__(self, policy: RandomPolicy) -> None:
            self.in_keys: list[NestedKey] = []
            self.out_keys = policy.out_keys
            self._specs = [policy.action_spec[key] for key in policy.out_keys]

        def __call__(self, *leaves: Tensor) -> tuple[Tensor, ...]:
            del leaves
            return tuple([spec.rand(torch.Size([])) for spec in self._specs])
