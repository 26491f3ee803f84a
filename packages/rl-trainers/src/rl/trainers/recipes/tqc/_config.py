"""Settings of the recipe ``tqc``. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rl.trainers._config.fields import check, positive
from rl.trainers._config.recipe import Recipe
from rl.trainers.recipes.off_policy._config import SoftConfig

__all__ = ["TQC", "TQCConfig"]


@dataclass(frozen=True, kw_only=True)
class TQCConfig(SoftConfig):
    """Truncated quantile critics; bounded continuous actions only.

    Kuznetsov et al., "Controlling overestimation bias with truncated mixture of continuous distributional quantile
    critics", 2020.

    Args:
        critics: number of critics.
        quantiles: quantiles that each critic writes.
        dropped: largest quantiles that the target drops for each critic.

    Raises:
        SpecError: if a value is out of its range.

    Example:
        >>> TQCConfig(env="Pendulum-v1").target_tau
        0.005
    """

    recipe: ClassVar[str] = "tqc"
    critics: int = 2
    quantiles: int = 25
    dropped: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check(
            self,
            {
                "critics": (positive, "above 0"),
                "quantiles": (positive, "above 0"),
                "dropped": (lambda n: 0 <= n < self.quantiles, "0 or more, and below quantiles"),
            },
        )


TQC = Recipe.of(TQCConfig)
