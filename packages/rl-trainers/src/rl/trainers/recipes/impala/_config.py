"""Settings of the recipe ``impala``. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rl.trainers._config.fields import check, positive
from rl.trainers._config.recipe import Recipe
from rl.trainers.recipes.on_policy._config import OnPolicyConfig, optimizer_rule

__all__ = ["IMPALA", "ImpalaConfig"]


@dataclass(frozen=True, kw_only=True)
class ImpalaConfig(OnPolicyConfig):
    """V-trace actor-critic in one process: several gradient steps on each batch.

    Espeholt et al., "IMPALA: scalable distributed deep-RL with importance weighted actor-learner architectures", 2018.
    From the second gradient step on the batch is that of an older policy, as batches of remote actors are; V-trace
    weights it by the log-probabilities of the policy that collected it. Gradients of a recurrent policy flow through
    the steps of an environment in a batch.

    Args:
        epochs: gradient steps on each batch; before the last one it is epochs - 1 updates old.
        optimizer: rmsprop or adam.
        entropy_weight: weight of the entropy bonus.
        rho_thresh: largest weight of a temporal difference.
        c_thresh: largest weight of what follows, at most `rho_thresh`.

    Raises:
        SpecError: if a value is out of its range.

    Example:
        >>> ImpalaConfig(epochs=1).rho_thresh
        1.0
    """

    recipe: ClassVar[str] = "impala"
    frames_per_batch: int = 160
    epochs: int = 4
    learning_rate: float = 1e-3
    optimizer: str = "rmsprop"
    entropy_weight: float = 0.0
    rho_thresh: float = 1.0
    c_thresh: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check(
            self,
            {
                "epochs": (positive, "above 0"),
                "optimizer": optimizer_rule,
                "entropy_weight": (lambda w: w >= 0, "0 or more"),
                "rho_thresh": (positive, "above 0"),
                "c_thresh": (
                    lambda c: 0 < c <= self.rho_thresh,
                    f"above 0, at most rho_thresh ({self.rho_thresh})",
                ),
            },
        )


IMPALA = Recipe.of(ImpalaConfig)
