"""The recipe ``tqc``: truncated quantile critics, in the loop of `off_policy`."""

from __future__ import annotations

from typing import Any

from rl.core.interfaces import Env
from rl.objectives import TQCLoss
from rl.trainers._run.run import TrainResult
from rl.trainers.recipes.off_policy._networks import critic, gaussian_actor
from rl.trainers.recipes.off_policy._train import train_off_policy
from rl.trainers.recipes.tqc._config import TQC, TQCConfig

__all__ = ["tqc_policy", "train_tqc"]


def train_tqc(config: TQCConfig, **options: Any) -> TrainResult:
    """Train with truncated quantile critics.

    Args:
        config: what to train, and how.
        options: ``out``, ``resume``, ``display`` and ``should_stop``, as for `train_dqn`.

    Example:
        >>> import tempfile
        >>> config = TQCConfig(
        ...     env="pendulum", total_frames=256, learning_starts=128, updates_per_step=0.05, minibatch_size=32,
        ...     hidden=(16,), eval_episodes=1, final_eval_episodes=1, loggers=("csv",),
        ... )
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     train_tqc(config, out=f"{folder}/run", display="none").train_frames
        256
    """
    return train_off_policy(TQC, config, tqc_policy, tqc_loss, **options)


tqc_policy = gaussian_actor


def tqc_loss(config: TQCConfig, env: Env, policy: Any) -> TQCLoss:
    """The loss, with its critics."""
    return TQCLoss(
        policy,
        critic(config, env, config.quantiles),
        num_qvalue_nets=config.critics,
        top_quantiles_to_drop_per_net=config.dropped,
        gamma=config.gamma,
        **config.temperature,
    )
