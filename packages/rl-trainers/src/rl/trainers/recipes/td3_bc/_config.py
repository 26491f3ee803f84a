"""Settings of the recipe ``td3-bc``. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rl.trainers._config.fields import check, positive
from rl.trainers._config.recipe import Recipe
from rl.trainers.recipes.offline._config import OfflineConfig

__all__ = ["TD3_BC", "TD3BCConfig"]


@dataclass(frozen=True, kw_only=True)
class TD3BCConfig(OfflineConfig):
    """TD3 with behaviour cloning; bounded continuous actions.

    Fujimoto and Gu, "A minimalist approach to offline reinforcement learning", 2021.

    Args:
        alpha: weight of the values against imitation.
        policy_noise: standard deviation of the noise on target actions, in half widths of their bounds.
        noise_clip: bound of that noise.

    Raises:
        SpecError: if a value is out of its range.

    Example:
        >>> TD3BCConfig(dataset="minari:pendulum/medium-v0").recipe
        'td3-bc'
    """

    recipe: ClassVar[str] = "td3-bc"

    alpha: float = 2.5
    policy_noise: float = 0.2
    noise_clip: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, {"alpha": (positive, "above 0")})


TD3_BC = Recipe.of(TD3BCConfig)
