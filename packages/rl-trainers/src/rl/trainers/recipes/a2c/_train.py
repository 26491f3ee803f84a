"""The recipe ``a2c``: advantage actor-critic, in the loop of `on_policy`."""

from __future__ import annotations

from typing import Any

from rl.core.interfaces import Env
from rl.objectives import A2CLoss
from rl.objectives.value import GAE
from rl.trainers._build.optimizer import optimizer_by_name
from rl.trainers._run.run import TrainResult
from rl.trainers.recipes.a2c._config import A2C, A2CConfig
from rl.trainers.recipes.on_policy._networks import on_policy_actor
from rl.trainers.recipes.on_policy._train import Learner, train_on_policy

__all__ = ["a2c_learner", "a2c_policy", "train_a2c"]


def train_a2c(config: A2CConfig, **options: Any) -> TrainResult:
    """Train with advantage actor-critic.

    Args:
        config: what to train, and how.
        options: ``out``, ``resume``, ``display`` and ``should_stop``, as for `train_ppo`.

    Example:
        >>> import tempfile
        >>> config = A2CConfig(
        ...     total_frames=400, num_envs=4, eval_episodes=1, final_eval_episodes=1, loggers=("csv",),
        ... )
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     train_a2c(config, out=f"{folder}/run", display="none").train_frames
        400
    """
    return train_on_policy(A2C, config, a2c_learner, **options)


a2c_policy = on_policy_actor


def a2c_learner(config: A2CConfig, env: Env, actor: Any, critic: Any) -> Learner:  # noqa: ARG001 - of the interface
    """Estimator, loss and gradient step."""
    loss = A2CLoss(actor, critic, entropy_coeff=config.entropy_weight, loss_critic_type="l2")
    return Learner(
        config,
        loss,
        optimizer_by_name(config.optimizer, loss.parameters(), config.learning_rate),
        weights={"loss_objective": 1.0, "loss_critic": config.value_weight}
        | ({"loss_entropy": 1.0} if config.entropy_weight else {}),
        outputs={"loss_actor": "loss_objective", "loss_critic": "loss_critic", "entropy": "entropy"},
        estimate=GAE(gamma=config.gamma, lmbda=config.gae_lambda, value_network=critic),
    )
