"""The recipe ``ddpg``: deep deterministic policy gradient, in the loop of `off_policy`."""

from __future__ import annotations

from typing import Any

from tensordict.nn import TensorDictModule

from rl.core.interfaces import Env
from rl.modules import AdditiveGaussianModule
from rl.objectives import DDPGLoss
from rl.trainers._run.run import TrainResult
from rl.trainers.recipes.ddpg._config import DDPG, DDPGConfig
from rl.trainers.recipes.off_policy._networks import bounded_action, critic, deterministic_actor
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
    return train_off_policy(DDPG, config, ddpg_policy, ddpg_loss, ddpg_noise, **options)


def ddpg_policy(config: DDPGConfig, env: Env) -> TensorDictModule:
    """The untrained policy: reads observations, writes ``action``.

    Raises:
        SpecError: if the environment's action is no vector of bounded floats.
    """
    return deterministic_actor(config, env, "ddpg")


def ddpg_loss(config: DDPGConfig, env: Env, policy: Any) -> DDPGLoss:
    """The loss, with its critics."""
    return DDPGLoss(policy, critic(config, env, "ddpg"), gamma=config.gamma)


def ddpg_noise(config: DDPGConfig, env: Env) -> AdditiveGaussianModule:
    """Normal noise on the actions of the training policy."""
    key, spec = bounded_action(env, "ddpg")
    sigma = config.exploration_noise * float((spec.high - spec.low).max() / 2)
    noise = AdditiveGaussianModule(spec, sigma_init=sigma, sigma_end=sigma, annealing_num_steps=1, action_key=key)
    return noise.to(config.device)
