"""Frame skipping for Gymnasium environments."""

from __future__ import annotations

from typing import Any

from rl.envs.gym._library import gymnasium
from rl.envs.gym._stepping import Outcome

__all__ = ["SkippingEnv"]


class SkippingEnv(gymnasium.Wrapper):  # pyright: ignore[reportMissingTypeArgument]
    """Gymnasium wrapper that repeats each action and adds up the rewards.

    Args:
        env: the environment.
        times: how often an action is taken; the end of an episode stops it.
    """

    def __init__(self, env: Any, times: int) -> None:
        super().__init__(env)
        self.times = times

    def step(self, action: Any) -> Outcome:
        """Take the action several times."""
        total: Any = 0.0
        for _ in range(self.times):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total = total + reward  # a number, or an array of several rewards
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info  # pyright: ignore[reportPossiblyUnboundVariable]
