"""Settings of the recipe ``redq``. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rl.trainers._config.fields import check, positive
from rl.trainers._config.recipe import Recipe
from rl.trainers.recipes.off_policy._config import SoftConfig

__all__ = ["REDQ", "REDQConfig"]


@dataclass(frozen=True, kw_only=True)
class REDQConfig(SoftConfig):
    """Randomized ensembled double Q-learning; bounded continuous actions only.

    Chen et al., "Randomized ensembled double Q-learning: learning fast without a model", 2021; the paper takes 20
    updates a step (``updates_per_step=20``).

    Args:
        critics: number of critics.
        subset: number of critics whose minimum is the target.

    Raises:
        SpecError: if a value is out of its range.

    Example:
        >>> REDQConfig(env="Pendulum-v1").target_tau
        0.005
    """

    recipe: ClassVar[str] = "redq"
    critics: int = 10
    subset: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check(
            self,
            {
                "critics": (positive, "above 0"),
                "subset": (lambda n: 0 < n <= self.critics, "above 0, and at most critics"),
            },
        )


REDQ = Recipe.of(REDQConfig)
