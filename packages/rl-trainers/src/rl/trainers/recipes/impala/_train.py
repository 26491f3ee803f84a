"""The recipe ``impala``: V-trace actor-critic, in the loop of `on_policy`."""

from __future__ import annotations

from typing import Any

from rl.core.interfaces import Env
from rl.objectives import ImpalaLoss
from rl.trainers._build.optimizer import optimizer_by_name
from rl.trainers._run.run import TrainResult
from rl.trainers.recipes.impala._config import IMPALA, ImpalaConfig
from rl.trainers.recipes.on_policy._networks import on_policy_actor
from rl.trainers.recipes.on_policy._train import Learner, train_on_policy

__all__ = ["impala_learner", "impala_policy", "train_impala"]


def train_impala(config: ImpalaConfig, **options: Any) -> TrainResult:
    """Train with V-trace.

    Args:
        config: what to train, and how.
        options: ``out``, ``resume``, ``display`` and ``should_stop``, as for `train_ppo`.

    Example:
        >>> import tempfile
        >>> config = ImpalaConfig(
        ...     total_frames=640, num_envs=4, eval_episodes=1, final_eval_episodes=1, loggers=("csv",),
        ... )
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     train_impala(config, out=f"{folder}/run", display="none").train_frames
        640
    """
    return train_on_policy(IMPALA, config, impala_learner, **options)


impala_policy = on_policy_actor


def impala_learner(
    config: ImpalaConfig,
    env: Env,  # noqa: ARG001 - of the interface
    actor: Any,
    critic: Any,
) -> Learner:
    """Loss and gradient steps."""
    loss = ImpalaLoss(
        actor,
        critic,
        gamma=config.gamma,
        rho_thresh=config.rho_thresh,
        c_thresh=config.c_thresh,
        entropy_coeff=config.entropy_weight,
        critic_coeff=1.0,
    )
    return Learner(
        config,
        loss,
        optimizer_by_name(config.optimizer, loss.parameters(), config.learning_rate),
        weights={"loss_objective": 1.0, "loss_critic": config.value_weight}
        | ({"loss_entropy": 1.0} if config.entropy_weight else {}),
        outputs={"loss_actor": "loss_objective", "loss_critic": "loss_critic", "entropy": "entropy"},
        epochs=config.epochs,
    )
