"""Settings of the recipe ``ppo-rnd``. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rl.trainers._config.fields import check, in_range, positive
from rl.trainers._config.recipe import Recipe
from rl.trainers.recipes.ppo._config import PPOConfig

__all__ = ["PPO_RND", "PPORNDConfig"]


@dataclass(frozen=True, kw_only=True)
class PPORNDConfig(PPOConfig):
    """PPO with an intrinsic reward for states that are new, for tasks whose rewards are rare.

    Burda et al., "Exploration by random network distillation", 2018: the intrinsic reward of a step is the error with
    which a network predicts the output of a fixed random one for the observation that the step reached. A second
    critic estimates its returns, which continue over the ends of episodes; advantages of both rewards are added up.
    The second critic, the predictor and the random network have no memory, also for a recurrent policy.

    Args:
        extrinsic_weight: weight of the advantages of the environment's rewards.
        intrinsic_weight: weight of the advantages of the intrinsic rewards.
        intrinsic_gamma: discount of the intrinsic return, per step.
        features: width of the output of the random network.
        predictor_learning_rate: of Adam, for the predictor; constant.

    Raises:
        SpecError: if a value is out of its range.

    Example:
        >>> PPORNDConfig(env="MountainCar-v0").intrinsic_gamma
        0.99
    """

    recipe: ClassVar[str] = "ppo-rnd"
    extrinsic_weight: float = 2.0
    intrinsic_weight: float = 1.0
    intrinsic_gamma: float = 0.99
    features: int = 64
    predictor_learning_rate: float = 1e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        above_zero = (positive, "above 0")
        check(
            self,
            {
                "extrinsic_weight": (lambda w: w >= 0, "0 or more"),
                "intrinsic_weight": above_zero,
                "intrinsic_gamma": in_range(0, 1),
                "features": above_zero,
                "predictor_learning_rate": above_zero,
            },
        )


PPO_RND = Recipe.of(PPORNDConfig)
