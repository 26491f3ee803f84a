"""Settings of the recipe ``sac``. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rl.trainers._config.recipe import Recipe
from rl.trainers.recipes.off_policy._config import SoftConfig

__all__ = ["SAC", "SACConfig"]


@dataclass(frozen=True, kw_only=True)
class SACConfig(SoftConfig):
    """Soft actor-critic; bounded continuous actions only.

    Haarnoja et al., "Soft actor-critic algorithms and applications", 2018.

    Raises:
        SpecError: if a value is out of its range.

    Example:
        >>> SACConfig(env="Pendulum-v1").target_tau
        0.005
    """

    recipe: ClassVar[str] = "sac"


SAC = Recipe.of(SACConfig)
