"""Settings of the recipe ``vdn``. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rl.trainers._config.recipe import Recipe
from rl.trainers.recipes.qmix._config import TeamQConfig

__all__ = ["VDN", "VDNConfig"]


@dataclass(frozen=True, kw_only=True)
class VDNConfig(TeamQConfig):
    """Value decomposition: Q-learning of a team, whose value is the sum of those of the agents; discrete actions.

    Sunehag et al., "Value-decomposition networks for cooperative multi-agent learning", 2018.

    Raises:
        SpecError: if a value is out of its range.

    Example:
        >>> VDNConfig(gamma=0.95).gamma
        0.95
    """

    recipe: ClassVar[str] = "vdn"


VDN = Recipe.of(VDNConfig)
