"""The recipe ``qmix``, and what it shares with ``vdn`` and ``iql-ma``: in the loop of `q_learning`."""

from __future__ import annotations

import math
from typing import Any

import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import Tensor, nn

from rl.core.errors import SpecError
from rl.core.interfaces import Env
from rl.core.keys import leaf_keys
from rl.core.specs import Categorical, OneHot
from rl.modules import QMixer, QValueModule
from rl.objectives import QMixerLoss
from rl.trainers._build.networks import described
from rl.trainers._run.run import TrainResult
from rl.trainers.recipes.multi_agent._networks import described_groups, inputs_of, layers_of, one_group
from rl.trainers.recipes.q_learning._train import train_q_learning
from rl.trainers.recipes.qmix._config import QMIX, QMIXConfig, TeamQConfig

__all__ = ["qmix_policy", "team_loss", "train_qmix", "train_team"]


def train_qmix(config: QMIXConfig, **options: Any) -> TrainResult:
    """Train a team with QMIX.

    Args:
        config: what to train, and how.
        options: ``out``, ``resume``, ``display`` and ``should_stop``, as for `train_dqn`.

    Raises:
        SpecError: if the environment has no group of agents, several, or actions that are not discrete.
    """
    return train_team(QMIX, config, qmix_loss, **options)


def train_team(recipe: Any, config: TeamQConfig, make_loss: Any, **options: Any) -> TrainResult:
    """Train a team with the loss of ``make_loss(config, env, policy)``."""
    return train_q_learning(recipe, config, qmix_policy, make_loss, describe=described_groups, with_env=True, **options)


def qmix_policy(config: TeamQConfig, env: Env) -> TensorDictSequential:
    """The untrained greedy policy: each agent takes the action of the largest value of its own.

    Raises:
        SpecError: if the environment has no group of agents, several, or actions that are not discrete.
    """
    group = one_group(env, config.recipe)
    spec = group.spec[0]
    if not isinstance(spec, (Categorical, OneHot)):
        raise SpecError(
            f"{config.recipe} trains discrete actions; those of {type(env).__name__} are {described(spec)}: train them"
            " with mappo or maddpg, or for VMAS set --env-kwargs '{continuous_actions: false}'"
        )
    net = layers_of(config, group, int(spec.n), centralized=False, activation=config.activation, gain=None)
    values = inputs_of(env, group, net, [group.key("action_value")], config.device)
    choice = QValueModule(
        action_value_key=group.key("action_value"),
        action_mask_key=group.key("action_mask") if group.masks_actions else None,
        out_keys=[group.action, group.key("action_value"), group.key("chosen_action_value")],
        spec=group.spec,
    )
    return TensorDictSequential(values, choice)


class _Mixed(nn.Module):
    """A mixer that reads parts of the state, flat."""

    def __init__(self, mixer: nn.Module, dims: list[int]) -> None:
        super().__init__()
        self.mixer, self.dims = mixer, dims

    def forward(self, values: Tensor, *parts: Tensor) -> Tensor:
        flat = [part.flatten(-dims).float() for part, dims in zip(parts, self.dims, strict=True)]
        return self.mixer(values, torch.cat(flat, -1)) if flat else self.mixer(values)


def team_loss(config: TeamQConfig, env: Env, policy: TensorDictSequential, mixer: Any, keys: list[Any]) -> QMixerLoss:
    """The loss of a team.

    Args:
        config: the settings.
        env: its group.
        policy: of `qmix_policy`.
        mixer: the mixer; called with the values and what is under `keys`.
        keys: of the state.
    """
    group = one_group(env, config.recipe)
    batch = len(env.batch_size)
    dims = [len(env.observation_spec[key].shape) - batch for key in keys]
    network = TensorDictModule(
        _Mixed(mixer, dims).to(config.device),
        in_keys=[group.key("chosen_action_value"), *keys],
        out_keys=["chosen_action_value"],
    )
    loss = QMixerLoss(policy, network, loss_function="l2", double_dqn=config.double, gamma=config.gamma)
    loss.set_keys(reward=group.key("reward"))
    return loss


def qmix_loss(config: QMIXConfig, env: Env, policy: TensorDictSequential) -> QMixerLoss:
    """The loss, with a mixer of the environment's state or of all observations."""
    group = one_group(env, config.recipe)
    keys: list[Any] = ["state"] if "state" in leaf_keys(env.observation_spec) else list(group.observations)
    batch = len(env.batch_size)
    size = sum(math.prod(env.observation_spec[key].shape[batch:]) for key in keys)
    mixer = QMixer((size,), config.mixing_width, group.n_agents)
    return team_loss(config, env, policy, mixer, keys)
