"""Networks of action values and of their distributions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from rl.core.interfaces import Env
from rl.modules import MLP, DuelingMlpDQNet, NoisyLinear
from rl.trainers._build.networks import ACTIVATIONS, network
from rl.trainers.recipes.q_learning._config import QLearningConfig

__all__ = ["value_network"]

#: scale of the noise at the beginning, of Fortunato et al., 2018, section 3.2
NOISE = 0.5


def value_network(
    config: QLearningConfig, env: Env, shape: tuple[int, ...], value_shape: tuple[int, ...], **settings: Any
) -> nn.Module:
    """A network from observations to the values of all actions, or to their distributions.

    Args:
        config: width and kind of its layers.
        env: decides the input.
        shape: of the output: ``(n,)``, or with atoms or quantiles.
        value_shape: the same with 1 in the place of the number of actions.
        settings: other arguments of `rl.trainers._build.networks.network`.
    """
    return network(
        env,
        out_features=0,
        hidden=config.hidden,
        activation=config.activation,
        last_gain=None,
        layout=config.observation_layout,
        device=config.device,
        body=_body(config, shape, value_shape),
        **settings,
    )


def _body(config: QLearningConfig, shape: tuple[int, ...], value_shape: tuple[int, ...]) -> Callable[[int], nn.Module]:
    layers: dict[str, Any] = {"activation_class": ACTIVATIONS[config.activation]}
    if config.noisy:
        layers["layer_class"] = partial(NoisyLinear, std_init=NOISE, use_exploration_type=True)
    hidden = list(config.hidden)
    if not config.dueling:
        return lambda width: MLP(width, shape, num_cells=hidden, **layers)
    common, own = (hidden[:-1], hidden[-1:]) if len(hidden) > 1 else (hidden, [])

    def dueling(width: int) -> nn.Module:
        features = {**layers, "in_features": width, "num_cells": common}
        heads = {**layers, "in_features": common[-1], "num_cells": own}
        return DuelingMlpDQNet(shape, value_shape, mlp_kwargs_feature=features, mlp_kwargs_output=heads)

    return dueling
