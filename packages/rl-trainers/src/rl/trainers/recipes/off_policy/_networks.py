"""Actors and critics of the off-policy recipes."""

from __future__ import annotations

from typing import Any

import torch
from tensordict.nn import TensorDictModule, TensorDictModuleBase
from torch import Tensor, nn

from rl.core.errors import SpecError
from rl.core.interfaces import Env
from rl.core.keys import NestedKey, key_str
from rl.core.specs import Bounded
from rl.modules import AdditiveGaussianModule, OrnsteinUhlenbeckProcessModule, ProbabilisticActor, TanhNormal
from rl.trainers._build.networks import action_of, described, network, observations_of
from rl.trainers.recipes.off_policy._config import DeterministicConfig, OffPolicyConfig

__all__ = [
    "Squashed",
    "body",
    "bounded_action",
    "critic",
    "deterministic_actor",
    "exploration_noise",
    "gaussian_actor",
    "is_bounded",
    "noise_of",
]

#: limits of the logarithm of a standard deviation
LEAST, MOST = -20.0, 2.0


def bounded_action(config: OffPolicyConfig, env: Env) -> tuple[NestedKey, Any]:
    """Key and spec of the action.

    Raises:
        SpecError: if it is no vector of bounded floats.
    """
    key, spec = action_of(env)
    if not is_bounded(spec, 1):
        raise SpecError(
            f"{config.recipe} trains vectors of bounded floats; {key_str(key)} of {type(env).__name__} is"
            f" {described(spec)}: train discrete actions with discrete-sac, dqn or ppo, or set bounds with --transform"
        )
    return key, spec


def is_bounded(spec: Any, dims: int) -> bool:
    """Whether actions are floats within finite bounds, with `dims` dimensions."""
    floats = type(spec) is Bounded and spec.dtype in (torch.float32, torch.float64) and len(spec.shape) == dims
    return floats and bool((spec.low.isfinite() & spec.high.isfinite()).all())


class _Gaussian(nn.Module):
    """Mean and standard deviation from a network, whose logarithm is clamped; both of the action's dtype."""

    def __init__(self, body: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.body, self.dtype = body, dtype

    def forward(self, *observations: Tensor) -> tuple[Tensor, Tensor]:
        loc, log_scale = self.body(*observations).to(self.dtype).chunk(2, -1)
        return loc, log_scale.clamp(LEAST, MOST).exp()


class Squashed(nn.Module):
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


def body(config: OffPolicyConfig, env: Env, **settings: Any) -> nn.Module:
    """The network that `config` describes; `settings` are other arguments of `network`."""
    described: dict[str, Any] = {
        "hidden": config.hidden,
        "activation": config.activation,
        "last_gain": None,
        "layout": config.observation_layout,
        "device": config.device,
    }
    return network(env, **{**described, **settings})


def gaussian_actor(config: OffPolicyConfig, env: Env, **settings: Any) -> ProbabilisticActor:
    """Untrained tanh-normal policy: reads observations, writes ``action``.

    Args:
        config: the settings.
        env: its specs decide input and output.
        settings: other arguments of `network`.

    Raises:
        SpecError: if the environment's action is no vector of bounded floats.
    """
    key, spec = bounded_action(config, env)
    net = _Gaussian(body(config, env, out_features=2 * spec.shape[0], **settings), spec.dtype).to(config.device)
    params: list[Any] = ["loc", "scale"]
    return ProbabilisticActor(
        TensorDictModule(net, in_keys=list(observations_of(env)), out_keys=params),
        in_keys=params,
        out_keys=[key],
        spec=spec,
        distribution_class=TanhNormal,
    )


def deterministic_actor(config: OffPolicyConfig, env: Env) -> TensorDictModule:
    """Untrained deterministic policy: reads observations, writes ``action`` within its bounds.

    Raises:
        SpecError: if the environment's action is no vector of bounded floats.
    """
    key, spec = bounded_action(config, env)
    net = Squashed(body(config, env, out_features=spec.shape[0]), spec.low, spec.high).to(config.device)
    return TensorDictModule(net, in_keys=list(observations_of(env)), out_keys=[key])


def exploration_noise(config: DeterministicConfig, env: Env) -> TensorDictModuleBase:
    """Noise on the actions of the training policy."""
    return noise_of(config, *bounded_action(config, env))


def noise_of(config: DeterministicConfig, key: NestedKey, spec: Any) -> TensorDictModuleBase:
    """Noise on the action under `key`, of floats within the bounds of `spec`."""
    sigma = config.exploration_noise * (spec.high - spec.low) / 2
    if config.noise == "ou":
        module = OrnsteinUhlenbeckProcessModule(spec, eps_end=1.0, sigma=sigma, action_key=key)
    else:
        module = AdditiveGaussianModule(spec, sigma_init=sigma, sigma_end=sigma, annealing_num_steps=1, action_key=key)
    return module.to(config.device)


def critic(config: OffPolicyConfig, env: Env, out_features: int = 1, **settings: Any) -> TensorDictModule:
    """Critic of observations and action: writes ``state_action_value`` ``[*B, out_features]``."""
    key, spec = bounded_action(config, env)
    net = body(config, env, out_features=out_features, action=spec, **settings)
    return TensorDictModule(net, in_keys=[*observations_of(env), key], out_keys=["state_action_value"])
