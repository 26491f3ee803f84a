"""CQL: conservative Q-learning on a data set, for one choice of several or bounded continuous actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rl.core.errors import ArgumentError
from rl.trainers.algorithm import Algorithm
from rl.trainers.config import DISCOUNTS, above, at_least, in_range
from rl.trainers.families import OfflineConfig


@dataclass(frozen=True, kw_only=True)
class CQLConfig(OfflineConfig):
    """Conservative Q-learning; one choice of several, or bounded continuous actions.

    Kumar et al., "Conservative Q-learning for offline reinforcement learning", 2020.

    Args:
        min_q_weight: Weight of the penalty on values of actions that are not in the data.
        num_random: Number of continuous actions of each kind that stand for all actions.
        with_lagrange: Whether to learn the weight of the penalty, such that it is lagrange_thresh; for
            continuous actions.
        lagrange_thresh: Penalty that is aimed at with with_lagrange, units of return.
        actor_bc_frames: Number of gradient steps at the start in which the policy imitates the data instead of
            maximizing the values, rounded up to hundreds; for continuous actions.

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> CQLConfig(dataset="minari:pendulum/medium-v0").recipe
        'cql'
    """

    recipe: ClassVar[str] = "cql"

    gamma: float = in_range(0, 1, 0.99, search=DISCOUNTS)
    min_q_weight: float = at_least(0, 5.0, search="0.5..20:log")
    num_random: int = above(0, 10)
    with_lagrange: bool = False
    lagrange_thresh: float = 5.0
    actor_bc_frames: int = at_least(0, 0)


def policy(config: CQLConfig, env: Any) -> Any:
    """Create the untrained tanh-normal policy, or for one choice the greedy one of action values.

    Raises:
        SpecError: If the environment's action is neither one choice nor a vector of bounded floats.
    """
    from tensordict.nn import TensorDictModule

    from rl.modules import QValueActor
    from rl.trainers.actions import is_choice, mask_key, single_choice
    from rl.trainers.actors import body, gaussian_actor
    from rl.trainers.networks import action_of, observations_of

    if is_choice(action_of(env)[1]):
        spec = single_choice(env, config.recipe)
        net = body(config, env, out_features=int(spec.n))
        values = TensorDictModule(net, list(observations_of(env)), ["action_value"])
        return QValueActor(values, spec=spec, action_mask_key=mask_key(env))
    return gaussian_actor(config, env)


def loss(config: CQLConfig, env: Any, policy: Any) -> Any:
    """Create the loss, with its critics.

    Raises:
        ArgumentError: If a setting is for continuous actions, and those of the environment are discrete.
    """
    from rl.objectives import CQLLoss, DiscreteCQLLoss
    from rl.trainers.actions import is_choice
    from rl.trainers.actors import bounded_action, critic
    from rl.trainers.networks import action_of

    if is_choice(action_of(env)[1]):
        for name in ("with_lagrange", "actor_bc_frames"):
            if getattr(config, name):
                raise ArgumentError(
                    f"cql has {name} for continuous actions only, and these are discrete: leave {name} out"
                )
        return DiscreteCQLLoss(policy, min_q_weight=config.min_q_weight, loss_function="l2", gamma=config.gamma)
    return CQLLoss(
        policy,
        critic(config, env),
        action_spec=bounded_action(config, env)[1],
        min_q_weight=config.min_q_weight,
        num_random=config.num_random,
        with_lagrange=config.with_lagrange,
        lagrange_thresh=config.lagrange_thresh,
        loss_function="l2",
        gamma=config.gamma,
    )


def imitate(config: CQLConfig, loss: Any, frames: int) -> None:
    """Let the policy imitate the data for the first frames."""
    loss.actor_bc = frames < config.actor_bc_frames


CQL = Algorithm(
    CQLConfig,
    loop="offline",
    policy=policy,
    loss=loss,
    before=imitate,
    outputs={
        "loss_critic": "loss_qvalue",
        "loss_cql": "loss_cql",
        "loss_actor": "loss_actor",
        "q_value": "pred_value",
        "alpha": "alpha",
        "entropy": "entropy",
    },
    presets="rl.trainers:presets/cql.yaml:cql",
)

train_cql = CQL.train
