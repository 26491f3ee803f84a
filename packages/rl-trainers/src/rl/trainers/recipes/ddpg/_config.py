"""Settings of the recipe ``ddpg``. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass

from rl.trainers._config.fields import check
from rl.trainers._config.recipe import Recipe
from rl.trainers.recipes.off_policy._config import OffPolicyConfig

__all__ = ["DDPG", "DDPGConfig"]


@dataclass(frozen=True, kw_only=True)
class DDPGConfig(OffPolicyConfig):
    """Deep deterministic policy gradient; bounded continuous actions only.

    Lillicrap et al., "Continuous control with deep reinforcement learning", 2016.

    Args:
        exploration_noise: standard deviation of the noise on actions, in half widths of their bounds.

    Raises:
        SpecError: if a value is out of its range.

    Example:
        >>> DDPGConfig(env="Pendulum-v1").target_tau
        0.005
    """

    learning_rate: float = 1e-3
    exploration_noise: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, {"exploration_noise": (lambda x: x >= 0, "0 or more")})


DDPG = Recipe(
    name="ddpg",
    config=DDPGConfig,
    train="rl.trainers.recipes.ddpg._train:train_ddpg",
    policy="rl.trainers.recipes.ddpg._train:ddpg_policy",
)
