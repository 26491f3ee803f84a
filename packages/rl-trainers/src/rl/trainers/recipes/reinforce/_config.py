"""Settings of the recipe ``reinforce``. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rl.trainers._config.recipe import Recipe
from rl.trainers.recipes.on_policy._config import OnPolicyConfig

__all__ = ["REINFORCE", "ReinforceConfig"]


@dataclass(frozen=True, kw_only=True)
class ReinforceConfig(OnPolicyConfig):
    """REINFORCE: one gradient step on the discounted returns of each batch.

    Williams, "Simple statistical gradient-following algorithms for connectionist reinforcement learning", 1992. A
    return has all rewards to the end of the episode. Where the batch or a time limit cuts an episode, the value of a
    critic stands for the rest of the return; without `baseline` that is its only use. Gradients of a recurrent policy
    flow through the steps of an environment in a batch.

    Args:
        baseline: subtract the critic's value of the state from the return.

    Raises:
        SpecError: if a value is out of its range.

    Example:
        >>> ReinforceConfig(baseline=False).gamma
        0.99
    """

    recipe: ClassVar[str] = "reinforce"
    num_envs: int = 4
    frames_per_batch: int = 512
    learning_rate: float = 0.01
    baseline: bool = True


REINFORCE = Recipe.of(ReinforceConfig)
