"""`NoopResetEnv`: episodes that begin with a random number of actions without effect."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from rl.core.errors import SpecError
from rl.core.specs import Categorical, OneHot
from rl.envs.base._specs import leaf_keys
from rl.envs.transforms._base import Reset, Step
from rl.envs.transforms._draws import RandomTransform
from rl.envs.transforms._entries import check_root_done, merged
from rl.envs.transforms._specs import Specs

__all__ = ["NoopResetEnv"]


class NoopResetEnv(RandomTransform):
    """Takes a number of steps with action 0 after each reset, so that episodes begin in different states.

    The number is drawn for each element and episode; an episode that ends meanwhile is reset, and the steps go on. Mnih
    et al., "Human-level control through deep reinforcement learning", 2015, methods.

    Args:
        noops: number of steps, at least 1.
        random: draw the number from 1 to `noops`, with the seed of the environment; exactly `noops` if false.

    Raises:
        SpecError: if `noops` is below 1, the action is not one `Categorical` or `OneHot`, or the environment has no
            ``done`` at the root.

    Order: before transforms that count steps or hold frames, which would see the steps taken here.

    Example:
        >>> from rl.envs import StepCounter, TransformedEnv
        >>> from rl.core.testing import CountingEnv
        >>> TransformedEnv(CountingEnv(9), NoopResetEnv(3, random=False)).reset()["observation"]
        tensor([3.])
    """

    leafwise: ClassVar[bool] = True

    def __init__(self, noops: int = 30, *, random: bool = True) -> None:
        super().__init__()
        if noops < 1:
            raise SpecError(f"NoopResetEnv: noops must be at least 1, got {noops}")
        self.noops, self.random = noops, random

    def _wrap(self, reset: Reset, step: Step) -> tuple[Reset, Step]:
        def restart(mask: Tensor | None) -> Any:
            root = reset(mask)
            done = root["done"]
            counts = self._integers(1, self.noops, done.shape) if self.random else torch.full(done.shape, self.noops)
            counts = counts.to(done.device)
            if mask is not None:
                counts = torch.where(mask, counts, 0)
            for taken in range(int(counts.max())):
                moving = counts > taken
                following = root.copy()
                following[self._action] = self._noop
                if not moving.all():
                    following["_step"] = moving
                outcome = step(following)
                for key in self._rewards:
                    del outcome[key]
                root = merged(moving, outcome, root)
                over = root["done"] & moving
                if over.any():
                    root = merged(over, reset(over), root)
            return root

        return restart, step

    def transform_specs(self, specs: Specs) -> None:
        """Nothing changes."""
        check_root_done(specs, self)
        actions = leaf_keys(specs.action)
        action = specs.action[actions[0]]
        if len(actions) != 1 or not isinstance(action, Categorical | OneHot):
            raise SpecError(f"{self!r} needs one discrete action, the environment has {specs.action}")
        self._action, self._rewards = actions[0], leaf_keys(specs.reward)
        noop = action.zero()
        if isinstance(action, OneHot):
            noop[..., 0] = 1
        self._noop = noop.expand((*specs.batch_size, *noop.shape)).clone()

    def __repr__(self) -> str:
        return f"NoopResetEnv(noops={self.noops}, random={self.random})"
