"""The recipe ``qmix``, and what it shares with ``vdn`` and ``iql-ma``: in the loop of `q_learning`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import Tensor, nn

from rl.core.errors import SpecError
from rl.core.interfaces import Env
from rl.core.keys import key_str, leaf_keys
from rl.core.specs import Categorical, OneHot
from rl.modules import EGreedyModule, QMixer, QValueModule
from rl.objectives import QMixerLoss
from rl.trainers._build.networks import described
from rl.trainers._build.team import GroupLosses
from rl.trainers._run.run import TrainResult
from rl.trainers.recipes.multi_agent._networks import Group, described_groups, groups_of, inputs_of, joined, layers_of
from rl.trainers.recipes.q_learning._train import train_q_learning
from rl.trainers.recipes.qmix._config import QMIX, QMIXConfig, TeamQConfig

__all__ = ["qmix_policy", "team_loss", "train_qmix", "train_team"]


def train_qmix(config: QMIXConfig, **options: Any) -> TrainResult:
    """Train teams with QMIX.

    Args:
        config: what to train, and how.
        options: ``out``, ``resume``, ``display`` and ``should_stop``, as for `train_dqn`.

    Raises:
        SpecError: if the environment has no group of agents, or actions that are not discrete.
    """
    return train_team(QMIX, config, qmix_loss, **options)


def train_team(
    recipe: Any, config: TeamQConfig, make_loss: Callable[[Any, Env, Group, TensorDictSequential], Any], **options: Any
) -> TrainResult:
    """Train teams with the loss of ``make_loss(config, env, group, policy)``, one for each group."""

    def losses(config: Any, env: Env, policy: TensorDictSequential) -> GroupLosses:
        parts: Any = policy.module
        groups = zip(groups_of(env, config.recipe), parts, strict=True)
        return GroupLosses([make_loss(config, env, group, one) for group, one in groups])

    return train_q_learning(
        recipe, config, qmix_policy, losses, describe=described_groups, make_explore=_Explore, with_env=True, **options
    )


class _Explore(TensorDictSequential):
    """Random actions of each agent for itself, legal ones where the environment writes masks."""

    def __init__(self, config: TeamQConfig, env: Env) -> None:
        parts = [
            EGreedyModule(
                group.spec,
                eps_init=config.epsilon_start,
                eps_end=config.epsilon_end,
                annealing_num_steps=config.epsilon_frames,
                action_key=group.action,
                action_mask_key=group.mask,
            )
            for group in groups_of(env, config.recipe)
        ]
        super().__init__(*parts)
        self._parts = parts

    @property
    def eps(self) -> Tensor:
        """Probability of a random action, of all groups."""
        return self._parts[0].eps

    def step(self, frames: int = 1) -> None:
        """Lower it by `frames` frames."""
        for part in self._parts:
            part.step(frames)


def qmix_policy(config: TeamQConfig, env: Env) -> TensorDictSequential:
    """The untrained greedy policy of all groups: each agent takes the action of the largest value of its own.

    Raises:
        SpecError: if the environment has no group of agents, or actions that are not discrete.
    """
    return TensorDictSequential(*[_greedy(config, env, group) for group in groups_of(env, config.recipe)])


def _greedy(config: TeamQConfig, env: Env, group: Group) -> TensorDictSequential:
    spec = group.spec[0]
    if not isinstance(spec, (Categorical, OneHot)):
        raise SpecError(
            f"{config.recipe} trains discrete actions; {key_str(group.action)} of {type(env).__name__} is"
            f" {described(spec)}: train it with mappo or maddpg, or for VMAS and MPE2 set"
            " --env-kwargs '{continuous_actions: false}'"
        )
    net = layers_of(config, group, int(spec.n), centralized=False, activation=config.activation, gain=None)
    values = inputs_of(env, group, net, [group.key("action_value")], config.device)
    choice = QValueModule(
        action_value_key=group.key("action_value"),
        action_mask_key=group.mask,
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
        return self.mixer(values, joined(parts, self.dims)) if parts else self.mixer(values)


def team_loss(
    config: TeamQConfig, env: Env, group: Group, policy: TensorDictSequential, mixer: Any, keys: list[Any]
) -> QMixerLoss:
    """The loss of a team.

    Args:
        config: the settings.
        env: the environment.
        group: the team.
        policy: of the team, from `qmix_policy`.
        mixer: the mixer; called with the values and what is under `keys`.
        keys: of the state.
    """
    batch = len(env.batch_size)
    dims = [len(env.observation_spec[key].shape) - batch for key in keys]
    network = TensorDictModule(
        _Mixed(mixer, dims).to(config.device),
        in_keys=[group.key("chosen_action_value"), *keys],
        out_keys=[group.key("team_value")],
    )
    loss = QMixerLoss(policy, network, loss_function="l2", double_dqn=config.double, gamma=config.gamma)
    loss.set_keys(reward=group.reward, global_value=group.key("team_value"))
    return loss


def qmix_loss(config: QMIXConfig, env: Env, group: Group, policy: TensorDictSequential) -> QMixerLoss:
    """The loss, with a mixer of the environment's state or of all observations of the group."""
    keys: list[Any] = ["state"] if "state" in leaf_keys(env.observation_spec) else list(group.observations)
    batch = len(env.batch_size)
    size = sum(math.prod(env.observation_spec[key].shape[batch:]) for key in keys)
    mixer = QMixer((size,), config.mixing_width, group.n_agents)
    return team_loss(config, env, group, policy, mixer, keys)
