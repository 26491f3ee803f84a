"""Actors and critics of the off-policy recipes."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from rl.core.errors import SpecError
from rl.core.interfaces import Env
from rl.core.keys import NestedKey, key_str
from rl.core.specs import Bounded
from rl.modules import ProbabilisticActor, TanhNormal
from rl.trainers._build.networks import action_of, described, network, observations_of
from rl.trainers.recipes.off_policy._config import OffPolicyConfig

__all__ = ["bounded_action", "critic", "deterministic_actor", "gaussian_actor"]

#: limits of the logarithm of a standard deviation
LEAST, MOST = -20.0, 2.0


def bounded_action(env: Env, recipe: str) -> tuple[NestedKey, Any]:
    """Key and spec of the action.

    Raises:
        SpecError: if it is no vector of bounded floats.
    """
    key, spec = action_of(env)
    floats = type(spec) is Bounded and spec.dtype in (torch.float32, torch.float64)
    if not floats or len(spec.shape) != 1 or not bool((spec.low.isfinite() & spec.high.isfinite()).all()):
        raise SpecError(
            f"{recipe} trains vectors of bounded floats; {key_str(key)} of {type(env).__name__} is {described(spec)}:"
            " train discrete actions with dqn or ppo, or set bounds with --transform"
        )
    return key, spec


class _Gaussian(nn.Module):
    """Mean and standard deviation from a network, whose logarithm is clamped."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, *observations: Tensor) -> tuple[Tensor, Tensor]:
        loc, log_scale = self.body(*observations).chunk(2, -1)
        return loc, log_scale.clamp(LEAST, MOST).exp()


class _Squashed(nn.Module):
    """An action within its bounds from a network."""

    def __init__(self, body: nn.Module, low: Tensor, high: Tensor) -> None:
        super().__init__()
        self.body = body
        self.middle: Tensor
        self.reach: Tensor
        self.register_buffer("middle", (low + high) / 2)
        self.register_buffer("reach", (high - low) / 2)

    def forward(self, *observations: Tensor) -> Tensor:
        return self.middle + self.reach * self.body(*observations).tanh()


def _body(config: OffPolicyConfig, env: Env, **settings: Any) -> nn.Module:
    make = partial(network, env, hidden=config.hidden, activation=config.activation, last_gain=None)
    return make(layout=config.observation_layout, device=config.device, **settings)


def gaussian_actor(config: OffPolicyConfig, env: Env, recipe: str) -> ProbabilisticActor:
    """Tanh-normal policy: reads observations, writes ``action``."""
    key, spec = bounded_action(env, recipe)
    body = _Gaussian(_body(config, env, out_features=2 * spec.shape[0])).to(config.device)
    params: list[Any] = ["loc", "scale"]
    return ProbabilisticActor(
        TensorDictModule(body, in_keys=list(observations_of(env)), out_keys=params),
        in_keys=params,
        out_keys=[key],
        spec=spec,
        distribution_class=TanhNormal,
    )


def deterministic_actor(config: OffPolicyConfig, env: Env, recipe: str) -> TensorDictModule:
    """Policy that writes ``action``, squashed to its bounds."""
    key, spec = bounded_action(env, recipe)
    body = _Squashed(_body(config, env, out_features=spec.shape[0]), spec.low, spec.high).to(config.device)
    return TensorDictModule(body, in_keys=list(observations_of(env)), out_keys=[key])


def critic(config: OffPolicyConfig, env: Env, recipe: str, out_features: int = 1) -> TensorDictModule:
    """Critic of observations and action: writes ``state_action_value`` ``[*B, out_features]``."""
    key, spec = bounded_action(env, recipe)
    body = _body(config, env, out_features=out_features, action=spec)
    return TensorDictModule(body, in_keys=[*observations_of(env), key], out_keys=["state_action_value"])
