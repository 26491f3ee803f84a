"""The recipe ``rainbow``: C51 with double, dueling, noisy, prioritized and multi-step parts."""

from __future__ import annotations

from typing import Any

from rl.trainers._run.run import TrainResult
from rl.trainers.recipes.c51._train import c51_loss, c51_policy
from rl.trainers.recipes.q_learning._train import train_q_learning
from rl.trainers.recipes.rainbow._config import RAINBOW, RainbowConfig

__all__ = ["rainbow_policy", "train_rainbow"]

#: the network and the loss are those of ``c51``
rainbow_policy = c51_policy


def train_rainbow(config: RainbowConfig, **options: Any) -> TrainResult:
    """Train with Rainbow.

    Args:
        config: what to train, and how.
        options: ``out``, ``resume``, ``display`` and ``should_stop``, as for `train_dqn`.

    Example:
        >>> import tempfile
        >>> config = RainbowConfig(total_frames=256, learning_starts=128, frames_per_batch=128, updates_per_step=0.02,
        ...                        eval_episodes=1, final_eval_episodes=1, loggers=("csv",))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     train_rainbow(config, out=f"{folder}/run", display="none").train_frames
        256
    """
    return train_q_learning(RAINBOW, config, c51_policy, c51_loss, **options)
