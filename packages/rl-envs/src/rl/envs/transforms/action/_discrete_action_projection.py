"""`DiscreteActionProjection`: more actions for the caller than the environment has."""

from __future__ import annotations

import torch
from torch import Tensor

from rl.core.errors import SpecError
from rl.core.keys import NestedKey
from rl.core.specs import Categorical, OneHot, TensorSpec
from rl.envs import _foreign
from rl.envs.transforms._draws import RandomTransform

__all__ = ["DiscreteActionProjection"]


@_foreign.action_projection
class DiscreteActionProjection(RandomTransform):
    """Gives the caller `max_actions` actions; those that the environment lacks become a random one of its own.

    For one policy in environments with different numbers of actions. `set_seed` of the
    environment seeds the random choice.

    Args:
        num_actions_effective: number of actions of the environment.
        max_actions: number of actions of the caller.
        action_key: the action, one-hot or an integer.

    Raises:
        SpecError: if `max_actions` is smaller, or the environment has another number of actions.

    Example:
        >>> from rl.envs import CartPoleEnv, TransformedEnv
        >>> env = TransformedEnv(CartPoleEnv(), DiscreteActionProjection(2, 5))
        >>> env.rollout(3)["action"].shape[-1]
        5
    """

    def __init__(self, num_actions_effective: int, max_actions: int, action_key: NestedKey = "action") -> None:
        super().__init__(in_keys_inv=[action_key])
        if max_actions < num_actions_effective:
            raise SpecError(
                f"DiscreteActionProjection: max_actions={max_actions} is less than the {num_actions_effective}"
                " actions of the environment"
            )
        self.num_actions_effective, self.max_actions = num_actions_effective, max_actions
        self._one_hot = False

    def _inverse(self, value: Tensor) -> Tensor:
        index = value.int().argmax(-1) if self._one_hot else value
        n = self.num_actions_effective
        index = torch.where(index < n, index, self._integers(0, n - 1, index.shape).to(index))
        return torch.nn.functional.one_hot(index.long(), n).to(value.dtype) if self._one_hot else index

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        n = spec.space.n if isinstance(spec, (OneHot, Categorical)) else None
        if n != self.num_actions_effective:
            raise SpecError(f"{self!r} is for {self.num_actions_effective} actions, the environment has {n}")
        self._one_hot = isinstance(spec, OneHot)
        kind = OneHot if self._one_hot else Categorical
        return kind(self.max_actions, dtype=spec.dtype or torch.int64, device=spec.device)
