"""Settings of the recipe ``bc``. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rl.trainers._config.recipe import Recipe
from rl.trainers.recipes.offline._config import OfflineConfig

__all__ = ["BC", "BCConfig"]


@dataclass(frozen=True, kw_only=True)
class BCConfig(OfflineConfig):
    """Behaviour cloning: a policy that imitates the actions of a data set; discrete actions and bounded floats.

    Pomerleau, "ALVINN: An autonomous land vehicle in a neural network", 1989.

    Raises:
        SpecError: if a value is out of its range.

    Example:
        >>> BCConfig(dataset="minari:pendulum/medium-v0").recipe
        'bc'
    """

    recipe: ClassVar[str] = "bc"


BC = Recipe.of(BCConfig)
