"""The recipe ``reinforce``: policy gradient of returns, in the loop of `on_policy`."""

from __future__ import annotations

from typing import Any

from rl.core.interfaces import Env
from rl.core.keys import VALUE_TARGET
from rl.objectives import ReinforceLoss
from rl.objectives.value import GAE
from rl.trainers._build.optimizer import adam
from rl.trainers._run.run import TrainResult
from rl.trainers.recipes.on_policy._networks import on_policy_actor
from rl.trainers.recipes.on_policy._train import Learner, train_on_policy
from rl.trainers.recipes.reinforce._config import REINFORCE, ReinforceConfig

__all__ = ["reinforce_learner", "reinforce_policy", "train_reinforce"]


def train_reinforce(config: ReinforceConfig, **options: Any) -> TrainResult:
    """Train with REINFORCE.

    Args:
        config: what to train, and how.
        options: ``out``, ``resume``, ``display`` and ``should_stop``, as for `train_ppo`.

    Example:
        >>> import tempfile
        >>> config = ReinforceConfig(
        ...     total_frames=512, num_envs=4, frames_per_batch=256, eval_episodes=1, final_eval_episodes=1,
        ...     loggers=("csv",),
        ... )
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     train_reinforce(config, out=f"{folder}/run", display="none").train_frames
        512
    """
    return train_on_policy(REINFORCE, config, reinforce_learner, **options)


reinforce_policy = on_policy_actor


def reinforce_learner(
    config: ReinforceConfig,
    env: Env,  # noqa: ARG001 - of the interface
    actor: Any,
    critic: Any,
) -> Learner:
    """Estimator, loss and gradient step."""
    loss = ReinforceLoss(actor, critic, loss_critic_type="l2")
    estimate = GAE(gamma=config.gamma, lmbda=1.0, value_network=critic)  # the return less the value
    if not config.baseline:
        loss.set_keys(advantage=VALUE_TARGET)
    return Learner(
        config,
        loss,
        adam(loss.parameters(), config.learning_rate),
        weights={"loss_actor": 1.0, "loss_value": config.value_weight},
        outputs={"loss_actor": "loss_actor", "loss_critic": "loss_value"},
        estimate=estimate,
    )
