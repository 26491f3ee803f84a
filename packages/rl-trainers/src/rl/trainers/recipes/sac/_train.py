"""The recipe ``sac``: soft actor-critic, in the loop of `off_policy`."""

from __future__ import annotations

from typing import Any

from rl.core.interfaces import Env
from rl.objectives import SACLoss
from rl.trainers._run.run import TrainResult
from rl.trainers.recipes.off_policy._networks import critic, gaussian_actor
from rl.trainers.recipes.off_policy._train import train_off_policy
from rl.trainers.recipes.sac._config import SAC, SACConfig

__all__ = ["sac_policy", "train_sac"]


def train_sac(config: SACConfig, **options: Any) -> TrainResult:
    """Train with soft actor-critic.

    Args:
        config: what to train, and how.
        options: ``out``, ``resume``, ``display`` and ``should_stop``, as for `train_dqn`.

    Example:
        >>> import tempfile
        >>> config = SACConfig(
        ...     env="pendulum", total_frames=256, learning_starts=128, updates_per_step=0.05, minibatch_size=32,
        ...     hidden=(16,), eval_episodes=1, final_eval_episodes=1, loggers=("csv",),
        ... )
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     train_sac(config, out=f"{folder}/run", display="none").train_frames
        256
    """
    return train_off_policy(SAC, config, sac_policy, sac_loss, **options)


sac_policy = gaussian_actor


def sac_loss(config: SACConfig, env: Env, policy: Any) -> SACLoss:
    """The loss, with its critics."""
    return SACLoss(
        policy,
        critic(config, env),
        loss_function="l2",
        gamma=config.gamma,
        **config.temperature,
    )
