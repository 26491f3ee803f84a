"""Settings of the recipe ``crossq``. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rl.trainers._config.fields import check, positive
from rl.trainers._config.recipe import Recipe
from rl.trainers.recipes.off_policy._config import SoftConfig

__all__ = ["CROSSQ", "CrossQConfig"]


@dataclass(frozen=True, kw_only=True)
class CrossQConfig(SoftConfig):
    """CrossQ: soft actor-critic with batch renormalization, without target networks; bounded continuous actions only.

    Bhatt et al., "CrossQ: batch normalization in deep reinforcement learning for greater sample efficiency and
    simplicity", 2024. Adam has the beta1 0.5 of the paper.

    Args:
        target_tau: 0, as there are no target networks.
        hidden: widths of the hidden layers of the actor.
        critic_hidden: widths of the hidden layers of the critics; the paper has [2048,2048], Stable-Baselines3
            [1024,1024], which are slow on a CPU.
        policy_delay: gradient steps of the critics for each of the actor.

    Raises:
        SpecError: if a value is out of its range.

    Example:
        >>> CrossQConfig(env="Pendulum-v1").policy_delay
        3
    """

    recipe: ClassVar[str] = "crossq"
    learning_rate: float = 1e-3
    target_tau: float = 0.0
    critic_hidden: tuple[int, ...] = (256, 256)
    policy_delay: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        check(
            self,
            {
                "target_tau": (lambda tau: tau == 0, "0, as crossq has no target networks"),
                "critic_hidden": (lambda sizes: all(n > 0 for n in sizes), "widths above 0"),
                "policy_delay": (positive, "above 0"),
            },
        )


CROSSQ = Recipe.of(CrossQConfig)
