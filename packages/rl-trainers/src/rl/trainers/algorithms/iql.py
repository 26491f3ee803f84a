"""IQL: implicit Q-learning on a data set, for one choice of several or bounded continuous actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rl.trainers.algorithm import Algorithm
from rl.trainers.config import DISCOUNTS, at_least, in_range
from rl.trainers.families import OfflineConfig


@dataclass(frozen=True, kw_only=True)
class IQLConfig(OfflineConfig):
    """Implicit Q-learning; one choice of several, or bounded continuous actions.

    Kostrikov et al., "Offline reinforcement learning with implicit Q-learning", 2022.

    Args:
        expectile: Expectile of the values; above 0.5 they are those of the better actions of the data.
        temperature: Inverse temperature of the weights of actions; 0 imitates all of them alike.

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> IQLConfig(dataset="minari:pendulum/medium-v0").recipe
        'iql'
    """

    recipe: ClassVar[str] = "iql"

    gamma: float = in_range(0, 1, 0.99, search=DISCOUNTS)
    expectile: float = in_range(0.001, 0.999, 0.7, search="0.5..0.95")
    temperature: float = at_least(0, 3.0, search="0.5..10:log")


def policy(config: IQLConfig, env: Any) -> Any:
    """Create the untrained policy: a normal distribution whose mean is within the bounds, or a categorical one.

    Raises:
        SpecError: If the environment's action is neither one choice nor a vector of bounded floats.
    """
    from tensordict.nn import TensorDictModule

    from rl.modules import IndependentNormal, ProbabilisticActor
    from rl.trainers.actions import is_choice
    from rl.trainers.actors import OwnScale, Squashed, body, bounded_action, categorical_actor
    from rl.trainers.networks import action_of, observations_of

    if is_choice(action_of(env)[1]):
        return categorical_actor(config, env)
    key, spec = bounded_action(config, env)
    mean = Squashed(body(config, env, out_features=spec.shape[0]), spec.low, spec.high)
    normal = OwnScale(mean, spec.shape[0], 0.0, spec.dtype).to(config.device)
    params: list[Any] = ["loc", "scale"]
    return ProbabilisticActor(
        TensorDictModule(normal, list(observations_of(env)), params),
        in_keys=params,
        out_keys=[key],
        spec=spec,
        distribution_class=IndependentNormal,
    )


def loss(config: IQLConfig, env: Any, policy: Any) -> Any:
    """Create the loss, with critics of states and of actions."""
    from tensordict.nn import TensorDictModule

    from rl.objectives import DiscreteIQLLoss, IQLLoss
    from rl.trainers.actions import is_choice, single_choice
    from rl.trainers.actors import body, critic
    from rl.trainers.networks import action_of, observations_of

    seen: list[Any] = list(observations_of(env))
    value = TensorDictModule(body(config, env, out_features=1), seen, ["state_value"])
    kind, qvalue = IQLLoss, None
    if is_choice(action_of(env)[1]):
        net = body(config, env, out_features=int(single_choice(env, config.recipe).n))
        kind, qvalue = DiscreteIQLLoss, TensorDictModule(net, seen, ["action_value"])
    return kind(
        policy,
        qvalue or critic(config, env),
        value,
        loss_function="l2",
        temperature=config.temperature,
        expectile=config.expectile,
        gamma=config.gamma,
    )


IQL = Algorithm(
    IQLConfig,
    loop="offline",
    policy=policy,
    loss=loss,
    outputs={
        "loss_critic": "loss_qvalue",
        "loss_value": "loss_value",
        "loss_actor": "loss_actor",
        "q_value": "pred_value",
        "entropy": "entropy",
    },
    presets="rl.trainers:presets/iql.yaml:iql",
)

train_iql = IQL.train
