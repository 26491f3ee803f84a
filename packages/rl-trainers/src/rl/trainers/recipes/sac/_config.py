"""Settings of the recipe ``sac``. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass

from rl.trainers._config.fields import check, positive
from rl.trainers._config.recipe import Recipe
from rl.trainers.recipes.off_policy._config import OffPolicyConfig

__all__ = ["SAC", "SACConfig"]


@dataclass(frozen=True, kw_only=True)
class SACConfig(OffPolicyConfig):
    """Soft actor-critic; bounded continuous actions only.

    Haarnoja et al., "Soft actor-critic algorithms and applications", 2018.

    Args:
        alpha_init: first temperature.
        fixed_alpha: keep it.

    Raises:
        SpecError: if a value is out of its range.

    Example:
        >>> SACConfig(env="Pendulum-v1").target_tau
        0.005
    """

    alpha_init: float = 1.0
    fixed_alpha: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, {"alpha_init": (positive, "above 0")})


SAC = Recipe(
    name="sac",
    config=SACConfig,
    train="rl.trainers.recipes.sac._train:train_sac",
    policy="rl.trainers.recipes.sac._train:sac_policy",
)
