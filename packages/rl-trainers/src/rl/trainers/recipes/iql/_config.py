"""Settings of the recipe ``iql``. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rl.trainers._config.fields import check, in_range
from rl.trainers._config.recipe import Recipe
from rl.trainers.recipes.offline._config import OfflineConfig

__all__ = ["IQL", "IQLConfig"]


@dataclass(frozen=True, kw_only=True)
class IQLConfig(OfflineConfig):
    """Implicit Q-learning; one choice of several, or bounded continuous actions.

    Kostrikov et al., "Offline reinforcement learning with implicit Q-learning", 2022.

    Args:
        expectile: above 0.5 values are those of the better actions of the data.
        temperature: inverse temperature of the weights of actions; 0 imitates all of them alike.

    Raises:
        SpecError: if a value is out of its range.

    Example:
        >>> IQLConfig(dataset="minari:pendulum/medium-v0").recipe
        'iql'
    """

    recipe: ClassVar[str] = "iql"

    expectile: float = 0.7
    temperature: float = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, {"expectile": in_range(0.001, 0.999), "temperature": (lambda t: t >= 0, "0 or more")})


IQL = Recipe.of(IQLConfig)
