"""Actions drawn from the environment's action spec."""

from __future__ import annotations

from tensordict import TensorDictBase

from rl.collectors._checks import flat_keys
from rl.collectors._loops.leaf import LeafAct
from rl.collectors._loops.tensordict import TensorDictAct
from rl.core.interfaces import Env, Leaves

__all__ = ["RandomActions"]


class RandomActions:
    """Draws actions.

    The specs are asked for at every draw, because an environment may narrow them (masks).

    Args:
        env: whose actions.
    """

    def __init__(self, env: Env) -> None:
        self._env = env
        self._keys = flat_keys(env.full_action_spec)

    def draw(self) -> Leaves:
        """One action for each element of the environment, by key."""
        spec = self._env.full_action_spec
        return {key: spec[key].rand() for key in self._keys}

    def leaf_act(self, policy: LeafAct | None) -> LeafAct:
        """Random actions in the leaf loop; `policy` still runs, for its other outputs."""

        def act(root: Leaves) -> Leaves | None:
            extra = policy(root) if policy is not None else None
            root.update(self.draw())
            return extra

        return act

    def tensordict_act(self, policy: TensorDictAct | None) -> TensorDictAct:
        """Random actions in the TensorDict loop; `policy` still runs, for its other outputs."""

        def act(td: TensorDictBase) -> TensorDictBase:
            out = policy(td) if policy is not None else td
            for key, action in self.draw().items():
                out.set(key, action)
            return out

        return act
