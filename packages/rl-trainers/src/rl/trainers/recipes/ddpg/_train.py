"""The recipe ``ddpg``: deep deterministic policy gradient, in the loop of `off_policy`."""

from __future__ import annotations

from typing import Any

from rl.core.interfaces import Env
from rl.objectives import DDPGLoss
from rl.trainers._run.run import TrainResult
from rl.trainers.recipes.ddpg._config import DDPG, DDPGConfig
from rl.trainers.recipes.off_policy._networks import critic, deterministic_actor, exploration_noise
from rl.trainers.recipes.off_policy._train import train_off_policy

__all__ = ["ddpg_policy", "train_ddpg"]


def train_ddpg(config: DDPGConfig, **options: Any) -> TrainResult:
    """Train with deep deterministic policy gradient.

    Args:
        config: what to train, and how.
        options: ``out``, ``resume``, ``display`` and ``should_stop``, as for `train_dqn`.

    Example:
        >>> import tempfile
        >>> config = DDPGConfig(
        ...     env="pendulum", total_frames=256, learning_starts=128, updates_per_step=0.05, minibatch_size=32,
        ...     hidden=(16,), eval_episodes=1, final_eval_episodes=1, loggers=("csv",),
        ... )
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     train_ddpg(config, out=f"{folder}/run", display="none").train_frames
        256
    """
    return train_off_policy(DDPG, config, ddpg_policy, ddpg_loss, exploration_noise, **options)


ddpg_policy = deterministic_actor


def ddpg_loss(config: DDPGConfig, env: Env, policy: Any) -> DDPGLoss:
    """The loss, with its critics."""
    return DDPGLoss(policy, critic(config, env), gamma=config.gamma)
