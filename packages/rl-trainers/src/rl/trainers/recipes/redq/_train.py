"""The recipe ``redq``: randomized ensembled double Q-learning, in the loop of `off_policy`."""

from __future__ import annotations

from typing import Any

from rl.core.interfaces import Env
from rl.objectives import REDQLoss
from rl.trainers._run.run import TrainResult
from rl.trainers.recipes.off_policy._networks import critic, gaussian_actor
from rl.trainers.recipes.off_policy._train import train_off_policy
from rl.trainers.recipes.redq._config import REDQ, REDQConfig

__all__ = ["redq_policy", "train_redq"]


def train_redq(config: REDQConfig, **options: Any) -> TrainResult:
    """Train with randomized ensembled double Q-learning.

    Args:
        config: what to train, and how.
        options: ``out``, ``resume``, ``display`` and ``should_stop``, as for `train_dqn`.

    Example:
        >>> import tempfile
        >>> config = REDQConfig(
        ...     env="pendulum", total_frames=256, learning_starts=128, updates_per_step=0.05, minibatch_size=32,
        ...     hidden=(16,), eval_episodes=1, final_eval_episodes=1, loggers=("csv",),
        ... )
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     train_redq(config, out=f"{folder}/run", display="none").train_frames
        256
    """
    return train_off_policy(REDQ, config, redq_policy, redq_loss, **options)


redq_policy = gaussian_actor


def redq_loss(config: REDQConfig, env: Env, policy: Any) -> REDQLoss:
    """The loss, with its critics."""
    return REDQLoss(
        policy,
        critic(config, env),
        num_qvalue_nets=config.critics,
        sub_sample_len=config.subset,
        loss_function="l2",
        gamma=config.gamma,
        **config.temperature,
    )
