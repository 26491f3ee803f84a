"""The recipe ``iql``: implicit Q-learning, in the loop of `offline`."""

from __future__ import annotations

from typing import Any

import torch
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from rl.core.interfaces import Env
from rl.core.keys import ACTION_VALUE
from rl.modules import IndependentNormal, ProbabilisticActor
from rl.objectives import DiscreteIQLLoss, IQLLoss
from rl.trainers._build.actions import single_choice
from rl.trainers._build.legal_actions import is_choice
from rl.trainers._build.networks import action_of, observations_of
from rl.trainers._run.run import TrainResult
from rl.trainers.recipes.iql._config import IQL, IQLConfig
from rl.trainers.recipes.off_policy._networks import Squashed, body, bounded_action, critic
from rl.trainers.recipes.offline._networks import categorical_actor
from rl.trainers.recipes.offline._train import train_offline

__all__ = ["iql_policy", "train_iql"]

OUTPUTS = {
    "loss_critic": "loss_qvalue",
    "loss_value": "loss_value",
    "loss_actor": "loss_actor",
    "q_value": "pred_value",
    "entropy": "entropy",
}


def train_iql(config: IQLConfig, **options: Any) -> TrainResult:
    """Train on a data set with implicit Q-learning.

    Args:
        config: what to train, and how.
        options: ``out``, ``resume``, ``display`` and ``should_stop``, as for `train_dqn`.

    Raises:
        SpecError: if there is no data set, or it does not fit the environment.
    """
    return train_offline(IQL, config, iql_policy, _loss, OUTPUTS, **options)


class _Normal(nn.Module):
    """A mean within the bounds, and a standard deviation for each dimension."""

    def __init__(self, mean: nn.Module, size: int) -> None:
        super().__init__()
        self.mean, self.log_scale = mean, nn.Parameter(torch.zeros(size))

    def forward(self, *observations: Tensor) -> tuple[Tensor, Tensor]:
        mean = self.mean(*observations)
        return mean, self.log_scale.clamp(-5, 2).exp().expand_as(mean)


def iql_policy(config: Any, env: Env) -> ProbabilisticActor:
    """The untrained policy: a normal distribution whose mean is within the bounds, or a categorical one.

    Raises:
        SpecError: if the environment's action is neither one choice nor a vector of bounded floats.
    """
    if is_choice(action_of(env)[1]):
        return categorical_actor(config, env)
    key, spec = bounded_action(config, env)
    mean = Squashed(body(config, env, out_features=spec.shape[0]), spec.low, spec.high)
    params: list[Any] = ["loc", "scale"]
    return ProbabilisticActor(
        TensorDictModule(_Normal(mean, spec.shape[0]).to(config.device), list(observations_of(env)), params),
        in_keys=params,
        out_keys=[key],
        spec=spec,
        distribution_class=IndependentNormal,
    )


def _loss(config: Any, env: Env, policy: Any) -> IQLLoss:
    seen: list[Any] = list(observations_of(env))
    value = TensorDictModule(body(config, env, out_features=1), seen, ["state_value"])
    kind, qvalue = IQLLoss, None
    if is_choice(action_of(env)[1]):
        net = body(config, env, out_features=int(single_choice(env, config.recipe).n))
        kind, qvalue = DiscreteIQLLoss, TensorDictModule(net, seen, [ACTION_VALUE])
    return kind(
        policy,
        qvalue or critic(config, env),
        value,
        loss_function="l2",
        temperature=config.temperature,
        expectile=config.expectile,
        gamma=config.gamma,
    )
