"""Settings of the recipe ``ddpg``. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rl.trainers._config.recipe import Recipe
from rl.trainers.recipes.off_policy._config import DeterministicConfig

__all__ = ["DDPG", "DDPGConfig"]


@dataclass(frozen=True, kw_only=True)
class DDPGConfig(DeterministicConfig):
    """Deep deterministic policy gradient; bounded continuous actions only.

    Lillicrap et al., "Continuous control with deep reinforcement learning", 2016.

    Raises:
        SpecError: if a value is out of its range.

    Example:
        >>> DDPGConfig(env="Pendulum-v1").target_tau
        0.005
    """

    recipe: ClassVar[str] = "ddpg"


DDPG = Recipe.of(DDPGConfig)
