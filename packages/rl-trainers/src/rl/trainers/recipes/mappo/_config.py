"""Settings of the recipe ``mappo``. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rl.trainers._config.fields import check
from rl.trainers._config.recipe import Recipe
from rl.trainers.recipes.multi_agent._config import GroupFields
from rl.trainers.recipes.ppo._config import PPOConfig

__all__ = ["MAPPO", "MAPPOConfig"]


@dataclass(frozen=True, kw_only=True)
class MAPPOConfig(GroupFields, PPOConfig):
    """Proximal policy optimization of groups of agents, with a centralized critic for each group.

    Yu et al., "The surprising effectiveness of PPO in cooperative multi-agent games", 2022. The defaults are for tasks
    of VMAS.

    Args:
        centralized_critic: the critic of an agent sees the observations of its group; else its own alone, which is
            ippo.
        value_norm: the critic learns targets that are normalized by their running mean and deviation.

    Raises:
        SpecError: if a value is out of its range.

    Example:
        >>> MAPPOConfig(env="vmas/navigation").share_params
        True
    """

    recipe: ClassVar[str] = "mappo"

    env: str = "vmas/balance"
    total_frames: int = 1_000_000
    num_envs: int = 64
    frames_per_batch: int = 6_400
    minibatch_size: int = 800
    sequence_length: int = 20
    epochs: int = 10
    learning_rate: float = 3e-4
    anneal: bool = False
    gae_lambda: float = 0.9
    value_weight: float = 1.0
    max_grad_norm: float = 5.0
    hidden: tuple[int, ...] = (256, 256)
    eval_every: int = 100_000
    log_every: int = 6_400
    checkpoint_every: int = 500_000
    centralized_critic: bool = True
    value_norm: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.policy != "mlp":
            check(self, {"share_params": (bool, f"true with policy={self.policy}")})


MAPPO = Recipe.of(MAPPOConfig)
