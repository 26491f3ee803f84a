"""`RandomPolicy`: random actions of a spec."""

from __future__ import annotations

from tensordict import TensorDictBase

from rl.core.keys import NestedKey
from rl.core.lowering import Lowered
from rl.core.specs import Composite, TensorSpec
from rl.envs.base._specs import leaf_keys

__all__ = ["RandomPolicy"]


class RandomPolicy:
    """Policy that samples each action from its spec; reads nothing.

    Args:
        action_spec: spec of the actions, with the batch, such as ``env.full_action_spec``.
        action_key: key of the action, if the spec is that of one action.

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
        return tensordict.update(self.action_spec.rand())

    def lowered(self) -> Lowered:
        """Return the function of no leaves to the actions, in the order of `out_keys`."""
        specs = [self.action_spec[key] for key in self.out_keys]
        return Lowered(lambda: tuple([spec.rand() for spec in specs]), self.in_keys, self.out_keys)
