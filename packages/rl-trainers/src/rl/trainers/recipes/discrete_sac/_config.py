"""Settings of the recipe ``discrete-sac``. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rl.trainers._config.fields import check
from rl.trainers._config.recipe import Recipe
from rl.trainers.recipes.off_policy._config import SoftConfig

__all__ = ["DISCRETE_SAC", "DiscreteSACConfig"]


@dataclass(frozen=True, kw_only=True)
class DiscreteSACConfig(SoftConfig):
    """Soft actor-critic for discrete actions: one choice of several.

    Christodoulou, "Soft actor-critic for discrete action settings", 2019. The defaults solve CartPole-v1.

    Args:
        target_entropy: entropy of the policy in nats that the temperature is learned for; auto is
            target_entropy_weight * log(number of actions).
        target_entropy_weight: share of the largest entropy; the paper has 0.98, which is close to random actions.

    Raises:
        SpecError: if a value is out of its range.

    Example:
        >>> DiscreteSACConfig(env="Acrobot-v1").target_entropy_weight
        0.7
    """

    recipe: ClassVar[str] = "discrete-sac"
    env: str = "CartPole-v1"
    total_frames: int = 50_000
    updates_per_step: float = 0.5
    minibatch_size: int = 128
    buffer_size: int = 50_000
    target_tau: float = 0.02
    eval_every: int = 2_500
    hidden: tuple[int, ...] = (128, 128)
    target_entropy_weight: float = 0.7

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, {"target_entropy_weight": (lambda share: 0 < share < 1, "above 0 and below 1")})


DISCRETE_SAC = Recipe.of(DiscreteSACConfig)
