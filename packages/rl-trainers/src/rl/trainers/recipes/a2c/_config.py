"""Settings of the recipe ``a2c``. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rl.trainers._config.fields import check, in_range
from rl.trainers._config.recipe import Recipe
from rl.trainers.recipes.on_policy._config import OnPolicyConfig, optimizer_rule

__all__ = ["A2C", "A2CConfig"]


@dataclass(frozen=True, kw_only=True)
class A2CConfig(OnPolicyConfig):
    """Advantage actor-critic: one gradient step on each batch.

    Mnih et al., "Asynchronous methods for deep reinforcement learning", 2016, with environments that are stepped
    together. Gradients of a recurrent policy flow through the steps of an environment in a batch.

    Args:
        optimizer: rmsprop or adam.
        gae_lambda: decay of the advantage estimator; 0 trusts the critic, 1 the sampled returns.
        entropy_weight: weight of the entropy bonus.

    Raises:
        SpecError: if a value is out of its range.

    Example:
        >>> A2CConfig(num_envs=16, frames_per_batch=80).optimizer
        'rmsprop'
    """

    recipe: ClassVar[str] = "a2c"
    total_frames: int = 500_000
    frames_per_batch: int = 40
    learning_rate: float = 7e-4
    optimizer: str = "rmsprop"
    gae_lambda: float = 1.0
    entropy_weight: float = 0.0
    eval_every: int = 25_000
    log_every: int = 5_000

    def __post_init__(self) -> None:
        super().__post_init__()
        check(
            self,
            {
                "optimizer": optimizer_rule,
                "gae_lambda": in_range(0, 1),
                "entropy_weight": (lambda w: w >= 0, "0 or more"),
            },
        )


A2C = Recipe.of(A2CConfig)
