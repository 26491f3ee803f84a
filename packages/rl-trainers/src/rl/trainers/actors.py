"""Policies and critics that fit an environment and the settings of a family."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from tensordict.nn import TensorDictModule, TensorDictModuleBase
from torch import Tensor, nn

from rl.core.errors import SpecError
from rl.core.interfaces import Env
from rl.core.keys import STATE_VALUE, NestedKey, key_str
from rl.core.policy_program import ProgramBuilder, Register, reader
from rl.core.specs import Bounded
from rl.modules import (
    MLP,
    AdditiveGaussianModule,
    DuelingMlpDQNet,
    NoisyLinear,
    OrnsteinUhlenbeckProcessModule,
    ProbabilisticActor,
    TanhNormal,
)
from rl.trainers.actions import ActionDistribution, distribution_of
from rl.trainers.families import DeterministicConfig, OfflineConfig, OffPolicyConfig, OnPolicyConfig, QLearningConfig
from rl.trainers.networks import (
    ACTIVATIONS,
    action_of,
    described,
    described_observations,
    network,
    observations_of,
    readings_of,
)
from rl.trainers.recurrent import activation_of, with_memory

__all__ = [
    "BoundedPlan",
    "GaussianParams",
    "OwnScale",
    "RemainingReturn",
    "SplitScale",
    "Squashed",
    "body",
    "bounded_action",
    "categorical_actor",
    "critic",
    "deterministic_actor",
    "exploration_noise",
    "gaussian_actor",
    "is_bounded",
    "noise_of",
    "on_policy_actor",
    "on_policy_critic",
    "value_network",
    "vector_of",
    "with_scale",
]

# ------------------------------------------------------------------ on-policy: all kinds of actions


def on_policy_actor(config: OnPolicyConfig, env: Env) -> ProbabilisticActor:
    """Create the actor of an on-policy algorithm: reads observations, writes ``action`` and ``action_log_prob``.

    `rl.trainers.actions.distribution_of` lists the distributions.

    Args:
        config: Widths, layers and initial weights.
        env: Environment, which decides inputs and distribution.

    Raises:
        SpecError: If the environment's action is of a kind that is not trained.
    """
    action = distribution_of(env, config.recipe)
    gain = 0.01 if config.ortho_init else None
    make = _on_policy_network(config, env)
    act = partial(make, out_features=action.width, last_gain=gain)
    if len(action.params) == 2:
        act = with_scale(config, make, action, gain)
    params: list[Any] = action.params
    return ProbabilisticActor(
        with_memory(config, env, act, params),
        in_keys=action.reads(),
        out_keys=[action.key],
        spec=action.spec,
        distribution_class=action.kind,
        distribution_kwargs=action.kwargs,
        return_log_prob=True,
    )


def on_policy_critic(config: OnPolicyConfig, env: Env) -> TensorDictModuleBase:
    """Create the critic of an on-policy algorithm, which shares nothing with the actor; writes ``state_value``."""
    gain = 1.0 if config.ortho_init else None
    value = partial(_on_policy_network(config, env), out_features=1, last_gain=gain)
    return with_memory(config, env, value, [STATE_VALUE], state="critic_state")


def _on_policy_network(config: OnPolicyConfig, env: Env) -> Callable[..., nn.Module]:
    return partial(
        network,
        env,
        num_cells=config.num_cells,
        activation=activation_of(config),
        layout=config.observation_layout,
        device=config.device,
    )


def with_scale(
    config: OnPolicyConfig, make: Callable[..., nn.Module], action: ActionDistribution, gain: float | None
) -> Callable[..., nn.Module]:
    """Return a constructor of networks of the mean and standard deviation of an action.

    Args:
        config: Settings, which decide where the deviation comes from.
        make: Constructor of the network, called with ``out_features`` and ``last_gain``.
        action: Distribution of the action.
        gain: Scale of the last layer.
    """
    own, dtype = config.state_independent_std, action.spec.dtype
    kind = OwnScale if own else SplitScale
    width = action.width if own else 2 * action.width

    def build(**settings: Any) -> nn.Module:
        body = make(out_features=width, last_gain=gain, **settings)
        return kind(body, action.width, config.log_std_init, dtype).to(config.device)

    return build


#: limits of the logarithm of a standard deviation
LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0


class OwnScale(nn.Module):
    """A mean from a network, and a standard deviation for each dimension, both of the action's dtype."""

    def __init__(self, mean: nn.Module, width: int, log_scale: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.mean, self.dtype = mean, dtype
        self.log_scale = nn.Parameter(torch.full((width,), log_scale))

    def forward(self, *observations: Tensor) -> tuple[Tensor, Tensor]:
        mean = self.mean(*observations).to(self.dtype)
        return mean, self.log_scale.clamp(LOG_STD_MIN, LOG_STD_MAX).exp().to(self.dtype).expand_as(mean)

    def describe(self, builder: ProgramBuilder, *observations: Register) -> tuple[Register, ...]:
        """Append the layers to a program; see `rl.core.policy_program`."""
        _check_dtype(builder, self.dtype)
        (mean,), scale = builder.network(self.mean, *observations), Register(len(self.log_scale))
        tensors = [reader(self, "log_scale")]
        builder.add("own_scale", [], [scale], tensors, low=LOG_STD_MIN, high=LOG_STD_MAX)
        return mean, scale


class SplitScale(nn.Module):
    """Mean and standard deviation from one network, both of the action's dtype."""

    def __init__(self, body: nn.Module, width: int, log_scale: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.body, self.width, self.log_scale, self.dtype = body, width, log_scale, dtype

    def forward(self, *observations: Tensor) -> tuple[Tensor, Tensor]:
        mean, raw = self.body(*observations).split(self.width, -1)
        return mean.to(self.dtype), (raw + self.log_scale).clamp(LOG_STD_MIN, LOG_STD_MAX).exp().to(self.dtype)

    def describe(self, builder: ProgramBuilder, *observations: Register) -> tuple[Register, ...]:
        """Append the layers to a program; see `rl.core.policy_program`."""
        _check_dtype(builder, self.dtype)
        (both,) = builder.network(self.body, *observations)
        return _split(builder, both, shift=self.log_scale, low=LOG_STD_MIN, high=LOG_STD_MAX)


def _check_dtype(builder: ProgramBuilder, dtype: torch.dtype) -> None:
    if dtype is not torch.float32:
        builder.reject(f"actions are {dtype}")


def _split(builder: ProgramBuilder, both: Register, **settings: float) -> tuple[Register, Register]:
    """Describe a mean, and a scale from its logarithm."""
    mean, raw, scale = (Register((both.width or 0) // 2) for _ in range(3))
    builder.add("split", [both], [mean, raw])
    builder.add("scale", [raw], [scale], (), mapping="exp", **settings)
    return mean, scale


# ------------------------------------------------------------------ off-policy: bounded floats

#: limits of the logarithm of a standard deviation, of Haarnoja et al., 2018
SAC_LOG_STD_MIN, SAC_LOG_STD_MAX = -20.0, 2.0


def bounded_action(config: OffPolicyConfig | OfflineConfig, env: Env) -> tuple[NestedKey, Any]:
    """Key and spec of the action.

    Raises:
        SpecError: If it is no vector of bounded floats.
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


class GaussianParams(nn.Module):
    """Mean and standard deviation from a network, whose logarithm is clamped; both of the action's dtype."""

    def __init__(self, body: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.body, self.dtype = body, dtype

    def forward(self, *observations: Tensor) -> tuple[Tensor, Tensor]:
        loc, log_scale = self.body(*observations).to(self.dtype).chunk(2, -1)  # [*B, 2 n] to twice [*B, n]
        return loc, log_scale.clamp(SAC_LOG_STD_MIN, SAC_LOG_STD_MAX).exp()

    def describe(self, builder: ProgramBuilder, *observations: Register) -> tuple[Register, ...]:
        """Append the layers to a program; see `rl.core.policy_program`."""
        _check_dtype(builder, self.dtype)
        (both,) = builder.network(self.body, *observations)
        return _split(builder, both, low=SAC_LOG_STD_MIN, high=SAC_LOG_STD_MAX)


class Squashed(nn.Module):
    """An action within its bounds from a network."""

    def __init__(self, body: nn.Module, low: Tensor, high: Tensor) -> None:
        super().__init__()
        self.body = body
        self.action_bias: Tensor
        self.action_scale: Tensor
        self.register_buffer("action_bias", (low + high) / 2)
        self.register_buffer("action_scale", (high - low) / 2)

    def forward(self, *observations: Tensor) -> Tensor:
        return self.action_bias + self.action_scale * self.body(*observations).tanh()

    def describe(self, builder: ProgramBuilder, *observations: Register) -> tuple[Register, ...]:
        """Append the layers to a program; see `rl.core.policy_program`."""
        _check_dtype(builder, self.action_bias.dtype)
        (x,) = builder.network(self.body, *observations)
        y = builder.layer("bound", x, [reader(self, "action_scale"), reader(self, "action_bias")])
        return (y,)


def body(config: OffPolicyConfig | OfflineConfig, env: Env, **settings: Any) -> nn.Module:
    """Create the network that `config` describes; `settings` are other arguments of `network`."""
    described: dict[str, Any] = {
        "num_cells": config.num_cells,
        "activation": config.activation,
        "last_gain": None,
        "layout": config.observation_layout,
        "device": config.device,
    }
    return network(env, **{**described, **settings})


def gaussian_actor(config: OffPolicyConfig | OfflineConfig, env: Env, **settings: Any) -> ProbabilisticActor:
    """Untrained tanh-normal policy: reads observations, writes ``action``.

    Args:
        config: The settings.
        env: Environment, whose specs decide input and output.
        settings: Other arguments of `network`.

    Raises:
        SpecError: If the environment's action is no vector of bounded floats.
    """
    key, spec = bounded_action(config, env)
    net = GaussianParams(body(config, env, out_features=2 * spec.shape[0], **settings), spec.dtype).to(config.device)
    params: list[Any] = ["loc", "scale"]
    return ProbabilisticActor(
        TensorDictModule(net, in_keys=list(observations_of(env)), out_keys=params),
        in_keys=params,
        out_keys=[key],
        spec=spec,
        distribution_class=TanhNormal,
    )


def deterministic_actor(config: OffPolicyConfig | OfflineConfig, env: Env) -> TensorDictModule:
    """Untrained deterministic policy: reads observations, writes ``action`` within its bounds.

    Raises:
        SpecError: If the environment's action is no vector of bounded floats.
    """
    key, spec = bounded_action(config, env)
    net = Squashed(body(config, env, out_features=spec.shape[0]), spec.low, spec.high).to(config.device)
    return TensorDictModule(net, in_keys=list(observations_of(env)), out_keys=[key])


def exploration_noise(config: DeterministicConfig, env: Env) -> TensorDictModuleBase:
    """Noise on the actions of the training policy."""
    return noise_of(config, *bounded_action(config, env))


def noise_of(config: DeterministicConfig, key: NestedKey, spec: Any) -> TensorDictModuleBase:
    """Noise on the action under `key`, of floats within the bounds of `spec`."""
    sigma = config.exploration_noise * (spec.high - spec.low) / 2  # of each dimension
    left = 0.0 if config.anneal_exploration_noise else 1.0  # share at the end, which the loop steps to
    steps = config.total_frames - config.warmup_frames
    if config.noise == "ou":
        module = OrnsteinUhlenbeckProcessModule(
            spec, eps_end=left, annealing_num_steps=steps, sigma=sigma, action_key=key
        )
    else:
        module = AdditiveGaussianModule(
            spec, sigma_init=sigma, sigma_end=sigma * left, annealing_num_steps=steps, action_key=key
        )
    return module.to(config.device)


def critic(
    config: OffPolicyConfig | OfflineConfig, env: Env, out_features: int = 1, **settings: Any
) -> TensorDictModule:
    """Critic of observations and action: writes ``state_action_value`` ``[*B, out_features]``."""
    key, spec = bounded_action(config, env)
    net = body(config, env, out_features=out_features, action=spec, **settings)
    return TensorDictModule(net, in_keys=[*observations_of(env), key], out_keys=["state_action_value"])


# ------------------------------------------------------------------ Q-learning

#: scale of the noise at the beginning, of Fortunato et al., 2018, section 3.2
NOISE = 0.5


def value_network(
    config: QLearningConfig, env: Env, shape: tuple[int, ...], value_shape: tuple[int, ...], **settings: Any
) -> nn.Module:
    """Create a network from observations to the values of all actions, or to their distributions.

    Args:
        config: Width and kind of its layers.
        env: Environment, which decides the input.
        shape: Shape of the output: ``(n,)``, or with atoms or quantiles.
        value_shape: The same with 1 in the place of the number of actions.
        settings: Other arguments of `rl.trainers.networks.network`.
    """
    return network(
        env,
        out_features=0,
        num_cells=config.num_cells,
        activation=config.activation,
        last_gain=None,
        layout=config.observation_layout,
        device=config.device,
        body=_q_body(config, shape, value_shape),
        **settings,
    )


def _q_body(
    config: QLearningConfig, shape: tuple[int, ...], value_shape: tuple[int, ...]
) -> Callable[[int], nn.Module]:
    layers: dict[str, Any] = {"activation_class": ACTIVATIONS[config.activation]}
    if config.noisy:
        layers["layer_class"] = partial(NoisyLinear, std_init=NOISE, use_exploration_type=True)
    hidden = list(config.num_cells)
    if not config.dueling:
        return lambda width: MLP(width, shape, num_cells=hidden, **layers)
    # Wang et al., 2016: the streams of value and advantage have a hidden layer each behind the common ones
    common, own = (hidden[:-1], hidden[-1:]) if len(hidden) > 1 else (hidden, [])

    def dueling(width: int) -> nn.Module:
        features = {**layers, "in_features": width, "num_cells": common}
        heads = {**layers, "in_features": common[-1], "num_cells": own}
        return DuelingMlpDQNet(shape, value_shape, mlp_kwargs_feature=features, mlp_kwargs_output=heads)

    return dueling


# ------------------------------------------------------------------ data sets


def vector_of(config: Any, env: Env) -> tuple[NestedKey, int]:
    """Key and width of the observation.

    Raises:
        SpecError: If it is no vector of numbers, or there are several.
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
    """Create the untrained policy with a distribution of choices.

    Raises:
        SpecError: If the environment's action is of another kind.
    """
    action = distribution_of(env, config.recipe)
    net = network(
        env,
        out_features=action.width,
        num_cells=config.num_cells,
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


class RemainingReturn(nn.Module):
    """The return that is still to come: the target minus the return so far; both in units of the largest return.

    Its buffers are set from the data set, and part of the policy's state.
    """

    target: Tensor
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("target", torch.zeros(()))
        self.register_buffer("scale", torch.ones(()))

    def forward(self, episode_reward: Tensor) -> Tensor:
        return (self.target - episode_reward.float()) / self.scale


class BoundedPlan(nn.Module):
    """A plan within the bounds of the action, for the style 0."""

    def __init__(self, model: nn.Module, spec: Any) -> None:
        super().__init__()
        self.model, self.dtype = model, spec.dtype
        self.low: Tensor
        self.high: Tensor
        self.register_buffer("low", spec.low)
        self.register_buffer("high", spec.high)

    def forward(self, observation: Tensor) -> Tensor:
        action, _, _ = self.model(observation.float())
        return action.to(self.dtype).clamp(self.low, self.high)
