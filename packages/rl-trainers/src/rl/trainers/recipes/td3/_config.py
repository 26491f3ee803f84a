"""Settings of the recipe ``td3``. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rl.trainers._config.fields import check, positive
from rl.trainers._config.recipe import Recipe
from rl.trainers.recipes.off_policy._config import DeterministicConfig

__all__ = ["TD3", "TD3Config"]


@dataclass(frozen=True, kw_only=True)
class TD3Config(DeterministicConfig):
    """Twin delayed deep deterministic policy gradient; bounded continuous actions only.

    Fujimoto et al., "Addressing function approximation error in actor-critic methods", 2018.

    Args:
        policy_noise: standard deviation of the noise on target actions, in half widths of their bounds.
        noise_clip: largest noise on target actions, in the same unit.
        policy_delay: gradient steps of the critics for each of the actor and the target networks (algorithm 1).

    Raises:
        SpecError: if a value is out of its range.

    Example:
        >>> TD3Config(env="Pendulum-v1").target_tau
        0.005
    """

    recipe: ClassVar[str] = "td3"
    policy_noise: float = 0.2
    noise_clip: float = 0.5
    policy_delay: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check(
            self,
            {
                "policy_noise": (lambda x: x >= 0, "0 or more"),
                "noise_clip": (lambda x: x >= 0, "0 or more"),
                "policy_delay": (positive, "above 0"),
            },
        )


TD3 = Recipe.of(TD3Config)
