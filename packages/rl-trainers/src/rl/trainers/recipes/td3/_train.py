"""The recipe ``td3``: twin delayed deep deterministic policy gradient, in the loop of `off_policy`."""

from __future__ import annotations

from typing import Any

from rl.core.interfaces import Env
from rl.objectives import TD3Loss
from rl.trainers._run.run import TrainResult
from rl.trainers.recipes.off_policy._networks import bounded_action, critic, deterministic_actor, exploration_noise
from rl.trainers.recipes.off_policy._train import train_off_policy
from rl.trainers.recipes.td3._config import TD3, TD3Config

__all__ = ["td3_policy", "train_td3"]


def train_td3(config: TD3Config, **options: Any) -> TrainResult:
    """Train with twin delayed deep deterministic policy gradient.

    Args:
        config: what to train, and how.
        options: ``out``, ``resume``, ``display`` and ``should_stop``, as for `train_dqn`.

    Example:
        >>> import tempfile
        >>> config = TD3Config(
        ...     env="pendulum", total_frames=256, learning_starts=128, updates_per_step=0.05, minibatch_size=32,
        ...     hidden=(16,), eval_episodes=1, final_eval_episodes=1, loggers=("csv",),
        ... )
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     train_td3(config, out=f"{folder}/run", display="none").train_frames
        256
    """
    return train_off_policy(
        TD3, config, td3_policy, td3_loss, exploration_noise, actor_every=config.policy_delay, **options
    )


td3_policy = deterministic_actor


def td3_loss(config: TD3Config, env: Env, policy: Any) -> TD3Loss:
    """The loss, with its critics."""
    _, spec = bounded_action(config, env)
    half = (spec.high - spec.low) / 2
    return TD3Loss(
        policy,
        critic(config, env),
        action_spec=spec,
        policy_noise=config.policy_noise * half,
        noise_clip=config.noise_clip * half,
        loss_function="l2",
        gamma=config.gamma,
    )
