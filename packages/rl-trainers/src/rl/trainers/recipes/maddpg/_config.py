"""Settings of the recipe ``maddpg``. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rl.trainers._config.recipe import Recipe
from rl.trainers.recipes.multi_agent._config import GroupFields
from rl.trainers.recipes.off_policy._config import DeterministicConfig

__all__ = ["MADDPG", "MADDPGConfig"]


@dataclass(frozen=True, kw_only=True)
class MADDPGConfig(GroupFields, DeterministicConfig):
    """Multi-agent deep deterministic policy gradient: critics of the observations and actions of a group.

    Lowe et al., "Multi-agent actor-critic for mixed cooperative-competitive environments", 2017; bounded continuous
    actions. The actor of an agent is improved with the present actions of the others, not with those of the buffer.

    Raises:
        SpecError: if a value is out of its range.

    Example:
        >>> MADDPGConfig(env="vmas/navigation").share_params
        True
    """

    recipe: ClassVar[str] = "maddpg"
    absent: ClassVar[tuple[str, ...]] = (*GroupFields.absent, "n_step")

    env: str = "vmas/balance"
    total_frames: int = 500_000
    num_envs: int = 32
    frames_per_batch: int = 320
    updates_per_step: float = 0.1
    minibatch_size: int = 256
    buffer_size: int = 200_000
    learning_starts: int = 5_000
    learning_rate: float = 3e-4
    eval_every: int = 50_000
    log_every: int = 5_000


MADDPG = Recipe.of(MADDPGConfig)
