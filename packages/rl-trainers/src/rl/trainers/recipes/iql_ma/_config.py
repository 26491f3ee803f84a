"""Settings of the recipe ``iql-ma``. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rl.trainers._config.recipe import Recipe
from rl.trainers.recipes.qmix._config import TeamQConfig

__all__ = ["IQL_MA", "IQLMAConfig"]


@dataclass(frozen=True, kw_only=True)
class IQLMAConfig(TeamQConfig):
    """Independent Q-learning: each agent learns the value of its own actions from its own reward; discrete actions.

    Tan, "Multi-agent reinforcement learning: Independent vs. cooperative agents", 1993, with the network of Mnih et
    al., 2015.

    Raises:
        SpecError: if a value is out of its range.

    Example:
        >>> IQLMAConfig(gamma=0.95).gamma
        0.95
    """

    recipe: ClassVar[str] = "iql-ma"


IQL_MA = Recipe.of(IQLMAConfig)
