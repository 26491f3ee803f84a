"""Settings of the recipe ``cql``. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rl.trainers._config.fields import check, positive
from rl.trainers._config.recipe import Recipe
from rl.trainers.recipes.offline._config import OfflineConfig

__all__ = ["CQL", "CQLConfig"]


@dataclass(frozen=True, kw_only=True)
class CQLConfig(OfflineConfig):
    """Conservative Q-learning; one choice of several, or bounded continuous actions.

    Kumar et al., "Conservative Q-learning for offline reinforcement learning", 2020.

    Args:
        min_q_weight: weight of the penalty on values of actions that are not in the data.
        num_random: continuous actions of each kind that stand for all actions.
        with_lagrange: learn the weight of the penalty, such that it is lagrange_thresh; for
            continuous actions.
        lagrange_thresh: see there, units of return.
        actor_bc_frames: gradient steps at the start in which the policy imitates the data instead of maximizing the
            values, rounded up to hundreds; for continuous actions.

    Raises:
        SpecError: if a value is out of its range.

    Example:
        >>> CQLConfig(dataset="minari:pendulum/medium-v0").recipe
        'cql'
    """

    recipe: ClassVar[str] = "cql"

    min_q_weight: float = 5.0
    num_random: int = 10
    with_lagrange: bool = False
    lagrange_thresh: float = 5.0
    actor_bc_frames: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        least = (lambda value: value >= 0, "0 or more")
        check(self, {"min_q_weight": least, "actor_bc_frames": least, "num_random": (positive, "above 0")})


CQL = Recipe.of(CQLConfig)
