"""Settings of the recipe ``rainbow``. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rl.trainers._config.recipe import Recipe
from rl.trainers.recipes.c51._config import C51Config

__all__ = ["RAINBOW", "RainbowConfig"]


@dataclass(frozen=True, kw_only=True)
class RainbowConfig(C51Config):
    """Rainbow: C51 with double Q-learning, dueling and noisy networks, priorities and multi-step returns.

    Hessel et al., "Rainbow: combining improvements in deep reinforcement learning", 2018. It is ``c51`` with other
    defaults; each part can be switched off. For Atari games the paper has ``v_min=-10, v_max=10, atoms=51,
    learning_rate=6.25e-5, minibatch_size=32, buffer_size=1_000_000, learning_starts=20_000, updates_per_step=0.25,
    target_tau=0, target_every=8_000`` (frames that the agent sees).

    Raises:
        SpecError: if a value is out of its range.

    Example:
        >>> RainbowConfig(env="Acrobot-v1").n_step
        3
    """

    recipe: ClassVar[str] = "rainbow"

    n_step: int = 3
    sampler: str = "prioritized:{alpha: 0.5, beta: 0.4}"
    dueling: bool = True
    noisy: bool = True
    epsilon_start: float = 0.0
    epsilon_end: float = 0.0


RAINBOW = Recipe.of(RainbowConfig)
