"""Settings of the recipe ``ippo``. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rl.trainers._config.recipe import Recipe
from rl.trainers.recipes.mappo._config import MAPPOConfig

__all__ = ["IPPO", "IPPOConfig"]


@dataclass(frozen=True, kw_only=True)
class IPPOConfig(MAPPOConfig):
    """Proximal policy optimization of independent agents: the critic of each sees its own observation alone.

    De Witt et al., "Is independent learning all you need in the StarCraft multi-agent challenge?", 2020.

    Raises:
        SpecError: if a value is out of its range.

    Example:
        >>> IPPOConfig(env="vmas/navigation").centralized_critic
        False
    """

    recipe: ClassVar[str] = "ippo"

    centralized_critic: bool = False


IPPO = Recipe.of(IPPOConfig)
