"""`SuccessReward`: reward for a success flag alone."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from rl.core.keys import NestedKey, unwrap
from rl.core.specs import Bounded
from rl.envs.transforms._base import Transform
from rl.envs.transforms._specs import Specs

__all__ = ["SuccessReward"]


class SuccessReward(Transform):
    """Writes a sparse reward: `reward` in the steps where a success flag is set, otherwise 0.

    Reads a bool entry under ``next``, ``[*B]`` or of the reward's shape; writes the reward, in its dtype.

    Args:
        success_key: the flag.
        reward_key: the reward that is replaced.
        reward: its value in case of success.

    Example:
        >>> from rl.envs import GridWorldEnv, TransformedEnv
        >>> env = TransformedEnv(GridWorldEnv(size=(1, 2)), SuccessReward("terminated"))
        >>> env.rollout(100)["next", "reward"].sum().item()
        1.0
    """

    leafwise: ClassVar[bool] = True

    def __init__(
        self, success_key: NestedKey = "success", reward_key: NestedKey = "reward", *, reward: float = 1.0
    ) -> None:
        super().__init__([success_key], [reward_key])
        self.success_key, self.reward_key, self.reward = unwrap(success_key), unwrap(reward_key), reward

    def _reset(self, root: Any, mask: Tensor | None = None) -> Any:
        del mask
        return root

    def _call(self, entries: Any) -> Any:
        reward = entries.get(self.reward_key, None)
        if reward is not None:
            success = entries[self.success_key].reshape(reward.shape)
            entries[self.reward_key] = torch.where(success, self.reward, 0.0).to(reward.dtype)
        return entries

    def transform_specs(self, specs: Specs) -> None:
        """Give the reward its bounds."""
        specs.written(self.success_key, self)
        for spec in specs.written(self.reward_key, self):
            old = spec[self.reward_key]
            low, high = min(self.reward, 0.0), max(self.reward, 0.0)
            spec[self.reward_key] = Bounded(low, high, shape=old.shape, dtype=old.dtype, device=old.device)
