"""Memory of recurrent policies: layers between observations and a network."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Protocol

import torch
from tensordict.nn import TensorDictModule, TensorDictModuleBase, TensorDictSequential
from torch import Tensor, nn

from rl.core.interfaces import Env
from rl.core.keys import NEXT, NestedKey
from rl.modules import GRUModule, LSTMModule
from rl.trainers.networks import ACTIVATIONS, network, observations_of

__all__ = ["NEVER_DONE", "MemoryConfig", "activation_of", "recurrent_layers", "with_memory"]

#: never true: to a recurrent policy the entire life of an environment is one sequence
NEVER_DONE = (NEXT, "break")


class MemoryConfig(Protocol):
    """The settings that are read here."""

    @property
    def policy(self) -> str: ...
    @property
    def recurrent_size(self) -> int: ...
    @property
    def recurrent_layers(self) -> int: ...
    @property
    def recurrent_horizon(self) -> int: ...
    @property
    def activation(self) -> str: ...
    @property
    def observation_layout(self) -> str: ...
    @property
    def device(self) -> str: ...


def activation_of(config: MemoryConfig) -> str:
    """Return the activation, with ``auto`` resolved.

    Behind recurrent layers it is relu: a saturated tanh there passes no gradient, and to predict returns of 20 or more
    from outputs that begin as small as those of recurrent layers all of them saturate.
    """
    if config.activation != "auto":
        return config.activation
    return "tanh" if config.policy == "mlp" else "relu"


def with_memory(
    config: MemoryConfig,
    env: Env,
    make: Callable[..., nn.Module],
    out_keys: Sequence[NestedKey],
    *,
    state: str = "recurrent_state",
) -> TensorDictModuleBase:
    """Create a network from observations to `out_keys`; with recurrent layers in front if the policy is recurrent.

    These are a dense layer, then the recurrent ones.

    Args:
        config: Settings, which decide the layers.
        env: Environment, which decides the input.
        make: Constructor of the network, called with ``in_features``; None is for observations.
        out_keys: Keys that the network writes.
        state: First key of the states and of what the recurrent layers write: ``(state, "h")``, ``(state,
            "features")``.
    """
    observations: list[Any] = list(observations_of(env))
    if config.policy == "mlp":
        return TensorDictModule(make(in_features=None), in_keys=observations, out_keys=list(out_keys))
    size, activation = config.recurrent_size, activation_of(config)
    dense = network(
        env,
        out_features=size,
        num_cells=(),
        activation=activation,
        last_gain=math.sqrt(2),
        layout=config.observation_layout,
        device=config.device,
    )
    inputs, features = (state, "inputs"), (state, "features")
    chain = nn.Sequential if len(observations) == 1 else _OfSeveral
    return TensorDictSequential(
        TensorDictModule(chain(dense, ACTIVATIONS[activation]()), in_keys=observations, out_keys=[inputs]),
        recurrent_layers(config, inputs, features, (state,)),
        TensorDictModule(make(in_features=size), in_keys=[features], out_keys=list(out_keys)),
    )


class _OfSeveral(nn.Sequential):
    """Layers of which the first reads several observations; `torch.nn.Sequential` passes one."""

    def forward(self, *observations: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        first, *rest = self
        return reduce(lambda x, layer: layer(x), rest, first(*observations))


def recurrent_layers(
    config: MemoryConfig,
    in_key: NestedKey,
    out_key: NestedKey,
    state: tuple[str, ...],
    *,
    n_agents: int | None = None,
) -> LSTMModule | GRUModule:
    """Create the recurrent layers of the settings, as wide at the input as at the output.

    Args:
        config: Settings: kind, width, number and initial time scale.
        in_key: Key of the input.
        out_key: Key of the output.
        state: First keys of the states, which are called ``h`` and, of an LSTM, ``c``.
        n_agents: Number of agents, which have a state each; None without agents.
    """
    size = config.recurrent_size
    parts = ("h", "c") if config.policy == "lstm" else ("h",)
    kind: Any = LSTMModule if config.policy == "lstm" else GRUModule
    layers = kind(
        size,
        size,
        num_layers=config.recurrent_layers,
        in_keys=[in_key, *((*state, part) for part in parts)],
        out_key=out_key,
        device=config.device,
        n_agents=n_agents,
    )
    _initialize(layers, size, config.recurrent_horizon)
    return layers


@torch.no_grad()
def _initialize(recurrent: nn.Module, size: int, horizon: int) -> None:
    """Weights and biases for small observations and long memory.

    Observations are often much smaller than 1, and what torch's initial weights of recurrent layers make of those is
    nearly a constant: so weights are orthogonal. The gates that keep the state begin with a time scale for each unit,
    between 1 and `horizon` steps (Tallec and Ollivier, "Can recurrent neural networks warp time?", 2018): with biases
    of zero, as with a horizon of 1, it halves at every step, and no gradient comes back from far.
    """
    for name, parameter in recurrent.named_parameters():
        if "weight" in name:
            nn.init.orthogonal_(parameter)
        else:
            nn.init.zeros_(parameter)
        if "bias_ih" in name and horizon > 1:  # the forget gate of an LSTM, the update gate of a GRU
            parameter[size : 2 * size].uniform_(1, horizon).log_()
