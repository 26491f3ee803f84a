"""Actor and critic of the on-policy recipes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn

from rl.core.interfaces import Env
from rl.core.keys import STATE_VALUE
from rl.modules import ProbabilisticActor
from rl.trainers._build.actions import ActionDistribution, distribution_of
from rl.trainers._build.memory import activation_of, with_memory
from rl.trainers._build.networks import network
from rl.trainers.recipes.on_policy._config import OnPolicyConfig

__all__ = ["on_policy_actor", "on_policy_networks", "with_scale"]


def on_policy_networks(
    config: OnPolicyConfig, env: Env, recipe: str
) -> tuple[ProbabilisticActor, TensorDictModuleBase]:
    """The untrained actor and critic, which share nothing.

    The actor reads observations, and writes ``action`` and ``action_log_prob``; the critic writes ``state_value``.
    `rl.trainers._build.actions.distribution_of` lists the distributions.

    Args:
        config: widths, layers and initial weights.
        env: decides inputs and distribution.
        recipe: name for messages.

    Raises:
        SpecError: if the environment's action is of another kind.
    """
    action = distribution_of(env, recipe)
    make = partial(
        network,
        env,
        hidden=config.hidden,
        activation=activation_of(config),
        layout=config.observation_layout,
        device=config.device,
    )
    gains: dict[str, Any] = {"actor": 0.01, "critic": 1.0} if config.ortho_init else {"actor": None, "critic": None}
    act = partial(make, out_features=action.width, last_gain=gains["actor"])
    if len(action.params) == 2:
        act = with_scale(config, make, action, gains["actor"])
    params: list[Any] = action.params
    actor = ProbabilisticActor(
        with_memory(config, env, act, params),
        in_keys=action.reads(),
        out_keys=[action.key],
        spec=action.spec,
        distribution_class=action.kind,
        distribution_kwargs=action.kwargs,
        return_log_prob=True,
    )
    value = partial(make, out_features=1, last_gain=gains["critic"])
    return actor, with_memory(config, env, value, [STATE_VALUE], state="critic_state")


def on_policy_actor(config: OnPolicyConfig, env: Env) -> ProbabilisticActor:
    """The untrained actor of `on_policy_networks`.

    Raises:
        SpecError: if the environment's action is of a kind that is not trained.
    """
    return on_policy_networks(config, env, config.recipe)[0]


def with_scale(
    config: OnPolicyConfig, make: Callable[..., nn.Module], action: ActionDistribution, gain: float | None
) -> Callable[..., nn.Module]:
    """What makes a network of the mean and standard deviation of an action.

    Args:
        config: where the deviation comes from.
        make: makes the network, from ``out_features`` and ``last_gain``.
        action: its distribution.
        gain: scale of the last layer.
    """
    own, dtype = config.state_independent_scale, action.spec.dtype
    kind = _WithScale if own else _SplitScale
    width = action.width if own else 2 * action.width

    def build(**settings: Any) -> nn.Module:
        body = make(out_features=width, last_gain=gain, **settings)
        return kind(body, action.width, config.init_log_scale, dtype).to(config.device)

    return build


#: limits of the logarithm of a standard deviation
LEAST, MOST = -5.0, 2.0


class _WithScale(nn.Module):
    """A mean from a network, and a standard deviation for each dimension, both of the action's dtype."""

    def __init__(self, mean: nn.Module, width: int, log_scale: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.mean, self.dtype = mean, dtype
        self.log_scale = nn.Parameter(torch.full((width,), log_scale))

    def forward(self, *observations: Tensor) -> tuple[Tensor, Tensor]:
        mean = self.mean(*observations).to(self.dtype)
        return mean, self.log_scale.clamp(LEAST, MOST).exp().to(self.dtype).expand_as(mean)


class _SplitScale(nn.Module):
    """Mean and standard deviation from one network, both of the action's dtype."""

    def __init__(self, body: nn.Module, width: int, log_scale: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.body, self.width, self.log_scale, self.dtype = body, width, log_scale, dtype

    def forward(self, *observations: Tensor) -> tuple[Tensor, Tensor]:
        mean, raw = self.body(*observations).split(self.width, -1)
        return mean.to(self.dtype), (raw + self.log_scale).clamp(LEAST, MOST).exp().to(self.dtype)
