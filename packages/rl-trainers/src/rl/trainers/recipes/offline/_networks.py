"""What the networks of the recipes for data sets read, and policies of discrete actions."""

from __future__ import annotations

from typing import Any

from tensordict.nn import TensorDictModule

from rl.core.errors import SpecError
from rl.core.interfaces import Env
from rl.core.keys import NestedKey
from rl.modules import ProbabilisticActor
from rl.trainers._build.actions import distribution_of
from rl.trainers._build.networks import described_observations, network, observations_of, readings_of
from rl.trainers.recipes.offline._config import OfflineConfig

__all__ = ["categorical_actor", "vector_of"]


def vector_of(config: Any, env: Env) -> tuple[NestedKey, int]:
    """Key and width of the observation.

    Raises:
        SpecError: if it is no vector of numbers, or there are several.
    """
    readings, batch = readings_of(env, config.observation_layout), len(env.batch_size)
    specs = observations_of(env)
    key = next(iter(readings))
    if len(readings) > 1 or readings[key] != "vector" or len(specs[key].shape) != batch + 1:
        raise SpecError(
            f"{config.recipe} reads one vector; {described_observations(env, config.observation_layout)}: join vectors"
            " with --transform 'cat-tensors:{in_keys: [...], out_key: observation}'"
        )
    return key, int(specs[key].shape[-1])


def categorical_actor(config: OfflineConfig, env: Env) -> ProbabilisticActor:
    """The untrained policy with a distribution of choices.

    Raises:
        SpecError: if the environment's action is of another kind.
    """
    action = distribution_of(env, config.recipe)
    net = network(
        env,
        out_features=action.width,
        hidden=config.hidden,
        activation=config.activation,
        last_gain=None,
        layout=config.observation_layout,
        device=config.device,
    )
    params: list[Any] = action.params
    return ProbabilisticActor(
        TensorDictModule(net, list(observations_of(env)), params),
        in_keys=action.reads(),
        out_keys=[action.key],
        spec=action.spec,
        distribution_class=action.kind,
        distribution_kwargs=action.kwargs,
    )
