"""The recipe ``crossq``: CrossQ, in the loop of `off_policy`."""

from __future__ import annotations

from typing import Any

from torch import nn

from rl.core.interfaces import Env
from rl.modules import BatchRenorm1d, ProbabilisticActor
from rl.objectives import CrossQLoss
from rl.trainers._run.run import TrainResult
from rl.trainers.recipes.crossq._config import CROSSQ, CrossQConfig
from rl.trainers.recipes.off_policy._networks import critic, gaussian_actor
from rl.trainers.recipes.off_policy._train import train_off_policy

__all__ = ["crossq_policy", "train_crossq"]

#: training batches that are normalized by their own statistics alone (appendix of the paper)
WARMUP = 100_000


def train_crossq(config: CrossQConfig, **options: Any) -> TrainResult:
    """Train with CrossQ.

    Args:
        config: what to train, and how.
        options: ``out``, ``resume``, ``display`` and ``should_stop``, as for `train_dqn`.

    Example:
        >>> import tempfile
        >>> config = CrossQConfig(
        ...     env="pendulum", total_frames=256, learning_starts=128, updates_per_step=0.05, minibatch_size=32,
        ...     hidden=(16,), critic_hidden=(16,), eval_episodes=1, final_eval_episodes=1, loggers=("csv",),
        ... )
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     train_crossq(config, out=f"{folder}/run", display="none").train_frames
        256
    """
    delayed = {"actor_every": config.policy_delay, "betas": (0.5, 0.999)}
    return train_off_policy(CROSSQ, config, crossq_policy, crossq_loss, **delayed, **options)


def crossq_policy(config: CrossQConfig, env: Env) -> ProbabilisticActor:
    """The untrained policy, in evaluation mode: acts with the running statistics and leaves them.

    Raises:
        SpecError: if the environment's action is no vector of bounded floats.
    """
    return gaussian_actor(config, env, layer_class=normalized_linear).eval()


def crossq_loss(config: CrossQConfig, env: Env, policy: Any) -> CrossQLoss:
    """The loss, with its critics; next actions are those of the policy in evaluation mode."""
    return CrossQLoss(
        policy,
        critic(config, env, hidden=config.critic_hidden, layer_class=normalized_linear),
        loss_function="l2",
        gamma=config.gamma,
        **config.temperature,
    )


def normalized_linear(in_features: int, out_features: int, **options: Any) -> nn.Sequential:
    """A linear layer of normalized inputs."""
    renorm = BatchRenorm1d(in_features, warmup_steps=WARMUP)
    return nn.Sequential(renorm, nn.Linear(in_features, out_features, **options))
