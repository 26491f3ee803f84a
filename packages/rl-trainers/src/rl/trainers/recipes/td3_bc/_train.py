"""The recipe ``td3-bc``: TD3 with behaviour cloning, in the loop of `offline`."""

from __future__ import annotations

from typing import Any

from rl.core.interfaces import Env
from rl.objectives import TD3BCLoss
from rl.trainers._run.run import TrainResult
from rl.trainers.recipes.off_policy._networks import bounded_action, critic, deterministic_actor
from rl.trainers.recipes.offline._train import train_offline
from rl.trainers.recipes.td3_bc._config import TD3_BC, TD3BCConfig

__all__ = ["td3_bc_policy", "train_td3_bc"]

OUTPUTS = {"loss_critic": "loss_qvalue", "loss_actor": "loss_actor", "loss_bc": "bc_loss", "q_value": "pred_value"}


def train_td3_bc(config: TD3BCConfig, **options: Any) -> TrainResult:
    """Train on a data set with TD3 and behaviour cloning.

    Args:
        config: what to train, and how.
        options: ``out``, ``resume``, ``display`` and ``should_stop``, as for `train_dqn`.

    Raises:
        SpecError: if there is no data set, or it does not fit the environment.
    """
    return train_offline(TD3_BC, config, td3_bc_policy, _loss, OUTPUTS, **options)


def td3_bc_policy(config: Any, env: Env) -> Any:
    """The untrained deterministic policy.

    Raises:
        SpecError: if the environment's action is no vector of bounded floats.
    """
    return deterministic_actor(config, env)


def _loss(config: Any, env: Env, policy: Any) -> TD3BCLoss:
    _, spec = bounded_action(config, env)
    half = (spec.high - spec.low) / 2
    return TD3BCLoss(
        policy,
        critic(config, env),
        alpha=config.alpha,
        action_spec=spec,
        policy_noise=config.policy_noise * half,
        noise_clip=config.noise_clip * half,
        loss_function="l2",
        gamma=config.gamma,
    )
