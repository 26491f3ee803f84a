"""A2C: advantage actor-critic with one gradient step a batch, for all kinds of actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rl.trainers.algorithm import Algorithm
from rl.trainers.config import at_least, checked, in_range, one_of
from rl.trainers.families import OnPolicyConfig


@dataclass(frozen=True, kw_only=True)
class A2CConfig(OnPolicyConfig):
    """Advantage actor-critic: one gradient step on each batch.

    Mnih et al., "Asynchronous methods for deep reinforcement learning", 2016, with environments that are stepped
    together. Gradients of a recurrent policy flow through the steps of an environment in a batch.

    Args:
        optimizer: Name of the optimizer: rmsprop or adam.
        lmbda: Decay of the advantage estimator; 0 trusts the critic, 1 the sampled returns.
        entropy_coeff: Weight of the entropy bonus.

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> A2CConfig(num_envs=16, frames_per_batch=80).optimizer
        'rmsprop'
    """

    recipe: ClassVar[str] = "a2c"
    total_frames: int = 500_000
    frames_per_batch: int = checked(40, search="40,80,160,320")
    learning_rate: float = 7e-4
    optimizer: str = one_of(("rmsprop", "adam"), "rmsprop")
    lmbda: float = in_range(0, 1, 1.0, search="0.8..1")
    entropy_coeff: float = at_least(0, 0.0, search="0..0.05")
    eval_every: int = 25_000
    log_every: int = 5_000


def policy(config: OnPolicyConfig, env: Any) -> Any:
    """Create the untrained actor, for all kinds of actions.

    Raises:
        SpecError: If the environment's action is of a kind that is not trained.
    """
    from rl.trainers.actors import on_policy_actor

    return on_policy_actor(config, env)


def updater(config: A2CConfig, env: Any, actor: Any, critic: Any) -> Any:
    """Create gradient steps, one on each batch, with generalized advantage estimation."""
    from rl.objectives import A2CLoss
    from rl.objectives.value import GAE
    from rl.trainers.loops.updater import BatchUpdater, optimizer_by_name

    del env
    loss = A2CLoss(actor, critic, entropy_coeff=config.entropy_coeff, loss_critic_type="l2")
    return BatchUpdater(
        config,
        loss,
        {"loss_actor": "loss_objective", "loss_critic": "loss_critic", "entropy": "entropy"},
        optimizer=optimizer_by_name(config.optimizer, loss.parameters(), config.learning_rate),
        estimate=GAE(gamma=config.gamma, lmbda=config.lmbda, value_network=critic),
    )


A2C = Algorithm(A2CConfig, loop="on_policy", policy=policy, updater=updater, presets="rl.trainers:presets/a2c.yaml:a2c")

train_a2c = A2C.train
