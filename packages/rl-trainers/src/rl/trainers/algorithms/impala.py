"""IMPALA: V-trace actor-critic, for all kinds of actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rl.trainers.algorithm import Algorithm
from rl.trainers.config import above, at_least, checked, one_of, where
from rl.trainers.families import OnPolicyConfig


@dataclass(frozen=True, kw_only=True)
class ImpalaConfig(OnPolicyConfig):
    """V-trace actor-critic in one process: several gradient steps on each batch.

    Espeholt et al., "IMPALA: scalable distributed deep-RL with importance weighted actor-learner architectures", 2018.
    From the second gradient step on the batch is that of an older policy, as batches of remote actors are; V-trace
    weights it by the log-probabilities of the policy that collected it. Gradients of a recurrent policy flow through
    the steps of an environment in a batch.

    Args:
        epochs: Number of gradient steps on each batch; before the last one it is epochs - 1 updates old.
        optimizer: Name of the optimizer: rmsprop or adam.
        entropy_coeff: Weight of the entropy bonus.
        rho_thresh: Largest weight of a temporal difference.
        c_thresh: Largest weight of what follows, at most `rho_thresh`.

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> ImpalaConfig(epochs=1).rho_thresh
        1.0
    """

    recipe: ClassVar[str] = "impala"
    frames_per_batch: int = checked(160, search="80,160,320,640")
    epochs: int = above(0, 4, search="1..8")
    learning_rate: float = 1e-3
    optimizer: str = one_of(("rmsprop", "adam"), "rmsprop")
    entropy_coeff: float = at_least(0, 0.0, search="0..0.05")
    rho_thresh: float = above(0, 1.0)
    c_thresh: float = checked(
        1.0, where(lambda c, config: 0 < c <= config.rho_thresh, "above 0, at most rho_thresh ({rho_thresh})")
    )


def policy(config: OnPolicyConfig, env: Any) -> Any:
    """Create the untrained actor, for all kinds of actions.

    Raises:
        SpecError: If the environment's action is of a kind that is not trained.
    """
    from rl.trainers.actors import on_policy_actor

    return on_policy_actor(config, env)


def updater(config: ImpalaConfig, env: Any, actor: Any, critic: Any) -> Any:
    """Gradient steps on full batches; the loss corrects for the policy that collected them."""
    from rl.objectives import ImpalaLoss
    from rl.trainers.loops.updater import BatchUpdater, optimizer_by_name

    del env
    loss = ImpalaLoss(
        actor,
        critic,
        gamma=config.gamma,
        rho_thresh=config.rho_thresh,
        c_thresh=config.c_thresh,
        entropy_coeff=config.entropy_coeff,
        critic_coeff=1.0,
    )
    return BatchUpdater(
        config,
        loss,
        {"loss_actor": "loss_objective", "loss_critic": "loss_critic", "entropy": "entropy"},
        optimizer=optimizer_by_name(config.optimizer, loss.parameters(), config.learning_rate),
        epochs=config.epochs,
    )


IMPALA = Algorithm(
    ImpalaConfig, loop="on_policy", policy=policy, updater=updater, presets="rl.trainers:presets/impala.yaml:impala"
)

train_impala = IMPALA.train
