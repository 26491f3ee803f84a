"""The recipe ``maddpg``: deterministic policy gradient of groups of agents, in the loop of `off_policy`."""

from __future__ import annotations

from typing import Any

import torch
from tensordict.nn import TensorDictModule, TensorDictSequential

from rl.core.errors import SpecError
from rl.core.interfaces import Env
from rl.core.keys import key_str
from rl.core.specs import Bounded, Unbounded
from rl.objectives import DDPGLoss
from rl.trainers._build.networks import described, yaml_key
from rl.trainers._build.team import GroupLosses
from rl.trainers._run.run import TrainResult
from rl.trainers.recipes.maddpg._config import MADDPG, MADDPGConfig
from rl.trainers.recipes.multi_agent._networks import Group, described_groups, groups_of, inputs_of, layers_of
from rl.trainers.recipes.off_policy._networks import Squashed, is_bounded, noise_of
from rl.trainers.recipes.off_policy._train import train_off_policy

__all__ = ["maddpg_policy", "train_maddpg"]


def train_maddpg(config: MADDPGConfig, **options: Any) -> TrainResult:
    """Train groups of agents with multi-agent deep deterministic policy gradient.

    Args:
        config: what to train, and how.
        options: ``out``, ``resume``, ``display`` and ``should_stop``, as for `train_dqn`.

    Raises:
        SpecError: if the environment has no groups of agents, or their actions are no bounded floats.
    """
    return train_off_policy(MADDPG, config, maddpg_policy, _loss, _noise, describe=described_groups, **options)


def _groups(config: MADDPGConfig, env: Env) -> list[Group]:
    """The groups, whose actions are bounded floats."""
    groups = groups_of(env, config.recipe)
    for group in groups:
        if not is_bounded(group.spec, 2):  # agents and vector
            raise SpecError(
                f"maddpg trains vectors of bounded floats; {key_str(group.action)} of {type(env).__name__} is"
                f" {described(group.spec)}{_remedy(group)}"
            )
    return groups


def _remedy(group: Group) -> str:
    """How to train other actions."""
    spec, keys = group.spec, f"in_keys_inv: [{yaml_key(group.action)}]"
    if type(spec) not in (Bounded, Unbounded) or not spec.dtype.is_floating_point:
        return ": train discrete actions with mappo or qmix, or for mpe2 set --env-kwargs '{continuous_actions: true}'"
    if len(spec.shape) != 2 or spec.dtype not in (torch.float32, torch.float64):  # agents and vector
        return ": convert it with a transform of your own (--transform module:Class)"
    other = ", or train it without bounds with mappo" if type(spec) is Unbounded else ""
    return f" without finite bounds: set them with --transform 'clip:{{{keys}, low: LOW, high: HIGH}}'{other}"


def maddpg_policy(config: MADDPGConfig, env: Env) -> TensorDictSequential:
    """The untrained policy of all groups: each agent reads its own observation.

    Raises:
        SpecError: if the environment has no groups of agents, or their actions are no bounded floats.
    """
    actors: list[TensorDictModule] = []
    for group in _groups(config, env):
        width = int(group.spec.shape[-1])
        net = layers_of(config, group, width, centralized=False, activation=config.activation, gain=None)
        actor = Squashed(net, group.spec.low, group.spec.high)
        actors.append(inputs_of(env, group, actor, [group.action], config.device))
    return TensorDictSequential(*actors)


def _noise(config: MADDPGConfig, env: Env) -> TensorDictSequential:
    return TensorDictSequential(*[noise_of(config, one.action, one.spec) for one in _groups(config, env)])


def _loss(config: MADDPGConfig, env: Env, policy: TensorDictSequential) -> GroupLosses:
    losses: list[DDPGLoss] = []
    for group, actor in zip(_groups(config, env), policy.module, strict=True):
        width = int(group.spec.shape[-1])
        net = layers_of(config, group, 1, centralized=True, activation=config.activation, gain=None, more=width)
        value = group.key("state_action_value")
        critic = inputs_of(env, group, net, [value], config.device, more=[group.action])
        loss = DDPGLoss(actor, critic, gamma=config.gamma)
        loss.set_keys(**group.loss_keys("state_action_value", "action"))
        losses.append(loss)
    return GroupLosses(losses)
