"""Settings of the recipe ``qmix``. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rl.trainers._config.fields import check, positive
from rl.trainers._config.recipe import Recipe
from rl.trainers.recipes.multi_agent._config import GroupFields
from rl.trainers.recipes.q_learning._config import QLearningConfig

__all__ = ["QMIX", "QMIXConfig", "TeamQConfig"]


@dataclass(frozen=True, kw_only=True)
class TeamQConfig(GroupFields, QLearningConfig):
    """Q-learning of a team of agents with discrete actions; base of qmix, vdn and iql-ma.

    Raises:
        SpecError: if a value is out of its range.
    """

    absent: ClassVar[tuple[str, ...]] = (*GroupFields.absent, "dueling", "noisy", "n_step")

    env: str = "pettingzoo/mpe2/simple_spread"
    total_frames: int = 500_000
    num_envs: int = 8
    frames_per_batch: int = 200
    updates_per_step: float = 0.1
    minibatch_size: int = 256
    buffer_size: int = 200_000
    learning_starts: int = 5_000
    learning_rate: float = 5e-4
    target_tau: float = 0.01
    epsilon_frames: int = 100_000
    eval_every: int = 50_000
    log_every: int = 5_000


@dataclass(frozen=True, kw_only=True)
class QMIXConfig(TeamQConfig):
    """QMIX: Q-learning of a team, whose value is a monotonic function of the values of the agents; discrete actions.

    Rashid et al., "QMIX: Monotonic value function factorisation for deep multi-agent reinforcement learning", 2018. The
    state that the mixing network reads is that of the environment (``state``), else the observations of all agents.

    Args:
        mixing_width: width of the mixing network.

    Raises:
        SpecError: if a value is out of its range.

    Example:
        >>> QMIXConfig(gamma=0.95).mixing_width
        32
    """

    recipe: ClassVar[str] = "qmix"

    target_tau: float = 0.0
    target_every: int = 10_000
    mixing_width: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, {"mixing_width": (positive, "above 0")})


QMIX = Recipe.of(QMIXConfig)
