"""Settings of the recipe ``qrdqn``. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rl.trainers._config.fields import check, positive
from rl.trainers._config.recipe import Recipe
from rl.trainers.recipes.q_learning._config import QLearningConfig

__all__ = ["QRDQN", "QRDQNConfig"]


@dataclass(frozen=True, kw_only=True)
class QRDQNConfig(QLearningConfig):
    """Deep Q-learning of the quantiles of returns; discrete actions only.

    Dabney et al., "Distributional reinforcement learning with quantile regression", 2018. The defaults solve
    CartPole-v1; for Atari games the paper has 200 quantiles.

    Args:
        quantiles: number of quantiles of each action.
        kappa: error up to which the loss is quadratic, units of return.

    Raises:
        SpecError: if a value is out of its range.

    Example:
        >>> QRDQNConfig(env="Acrobot-v1").quantiles
        25
    """

    recipe: ClassVar[str] = "qrdqn"

    quantiles: int = 25
    kappa: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, {"quantiles": (positive, "above 0"), "kappa": (lambda k: k >= 0, "0 or more")})


QRDQN = Recipe.of(QRDQNConfig)
