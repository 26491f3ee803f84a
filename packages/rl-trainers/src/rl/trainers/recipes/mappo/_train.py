"""The recipe ``mappo``: proximal policy optimization of groups of agents, in the loop of `on_policy`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictModuleBase, TensorDictSequential
from torch import Tensor, nn

from rl.core.contract import Contract
from rl.core.interfaces import Env
from rl.core.keys import NestedKey, leaf_keys
from rl.modules import ProbabilisticActor, RunningValueNorm
from rl.objectives import MAPPOLoss, MultiAgentGAE
from rl.trainers._build.actions import distribution_for
from rl.trainers._build.memory import activation_of, recurrent_layers
from rl.trainers._build.networks import ACTIVATIONS
from rl.trainers._build.team import GroupLosses
from rl.trainers._run.run import TrainResult
from rl.trainers.recipes.mappo._config import MAPPO, MAPPOConfig
from rl.trainers.recipes.multi_agent._networks import Group, described_groups, groups_of, inputs_of, layers_of
from rl.trainers.recipes.on_policy._networks import with_scale
from rl.trainers.recipes.on_policy._train import train_on_policy
from rl.trainers.recipes.ppo._train import PPOLearner

__all__ = ["mappo_policy", "train_mappo", "train_with"]


def train_mappo(config: MAPPOConfig, **options: Any) -> TrainResult:
    """Train groups of agents with proximal policy optimization and centralized critics.

    Args:
        config: what to train, and how.
        options: ``out``, ``resume``, ``display`` and ``should_stop``, as for `train_ppo`.

    Raises:
        UnknownComponentError: if there is no such environment.
        SpecError: if the environment has no groups of agents, or their actions do not fit.
        RLError: if the run folder exists, or a loss is not finite.
        CheckpointError: if there is nothing to resume.
    """
    return train_with(MAPPO, config, **options)


def train_with(recipe: Any, config: MAPPOConfig, **options: Any) -> TrainResult:
    """Train with the settings of `recipe`, which is ``mappo`` or ``ippo``."""
    return train_on_policy(recipe, config, MAPPOLearner, networks=mappo_networks, describe=described_groups, **options)


class _Estimates:
    """The estimators of all groups, one after the other."""

    def __init__(self, estimators: list[MultiAgentGAE]) -> None:
        self._estimators = estimators
        self.contract = _joined([one.contract for one in estimators])

    def __call__(self, batch: TensorDictBase) -> TensorDictBase:
        for one in self._estimators:
            batch = one(batch)
        return batch


def _joined(contracts: list[Any]) -> Contract:
    reads = {key.name: key for one in contracts for key in one.reads}
    return Contract(tuple(reads.values()), tuple(key for one in contracts for key in one.writes))


class MAPPOLearner(PPOLearner):
    """Epochs of minibatches over the losses of all groups.

    Args:
        config: settings.
        env: its groups.
        actor: the actors of the groups in order.
        critic: their critics.
    """

    def __init__(self, config: MAPPOConfig, env: Env, actor: Any, critic: Any) -> None:
        self._groups = groups_of(env, config.recipe)
        self._norms = [RunningValueNorm(1).to(config.device) if config.value_norm else None for _ in self._groups]
        super().__init__(config, env, actor, critic)
        norms = {f"value_norm_{group.name}": norm for group, norm in zip(self._groups, self._norms, strict=True)}
        self.parts |= {name: norm for name, norm in norms.items() if norm is not None}
        seen = leaf_keys(env.observation_spec)
        self._keys += [group.key("mask") for group in self._groups if group.key("mask") in seen]

    def _make_estimator(self, critic: Any) -> Any:
        config, made = self._settings, []
        for group, network, norm in zip(self._groups, critic.module, self._norms, strict=True):
            one = MultiAgentGAE(gamma=config.gamma, lmbda=config.gae_lambda, value_network=network, value_norm=norm)
            one.set_keys(**group.loss_keys())
            made.append(one)
        return _Estimates(made)

    def _make_loss(self, actor: Any, critic: Any, **settings: Any) -> Any:
        losses: list[MAPPOLoss] = []
        for group, policy, network, norm in zip(self._groups, actor.module, critic.module, self._norms, strict=True):
            loss = MAPPOLoss(policy, network, value_norm=norm, **settings)
            loss.set_keys(**group.loss_keys())
            losses.append(loss)
        return GroupLosses(losses)

    def _diagnostics(self, rows: Mapping[NestedKey, Tensor]) -> dict[str, float]:
        shares: list[Tensor] = []
        for group in self._groups:
            target = rows[group.key("value_target")]
            shares.append(1 - rows[group.key("advantage")].var() / target.var().clamp_min(1e-12))
        return {"explained_variance": float(torch.stack(shares).mean())}


def mappo_networks(config: MAPPOConfig, env: Env, recipe: str) -> tuple[TensorDictSequential, TensorDictSequential]:
    """The untrained actors and critics of all groups.

    The actor of a group reads its observations, and writes ``(group, "action")`` and ``(group, "action_log_prob")``;
    the critic writes ``(group, "state_value")``.

    Raises:
        SpecError: if the environment has no groups, or an action of a kind that is not trained.
    """
    groups = groups_of(env, recipe)
    gain = 1.0 if config.ortho_init else None
    actors = [_actor(config, env, group, recipe) for group in groups]
    critics = []
    for group in groups:
        make = partial(layers_of, config, group, 1, activation=activation_of(config), gain=gain)
        critics.append(
            _network(
                config,
                env,
                group,
                make,
                [group.key("state_value")],
                centralized=config.centralized_critic,
                state="critic_state",
            )
        )
    return TensorDictSequential(*actors), TensorDictSequential(*critics)


def _network(
    config: MAPPOConfig,
    env: Env,
    group: Group,
    make: Callable[..., nn.Module],
    out_keys: Sequence[NestedKey],
    *,
    centralized: bool,
    state: str = "recurrent_state",
) -> TensorDictModuleBase:
    """A network from the observations of a group; with recurrent layers in front if the policy is so.

    Args:
        config: which layers.
        env: for the shapes of the observations.
        group: the group.
        make: called with ``centralized`` and ``width``, returns the network; a width of None is for observations.
        out_keys: what it writes.
        centralized: whether it sees the observations of all agents.
        state: where states are, ``(group, state, "h")``.
    """
    if config.policy == "mlp":
        net = make(centralized=centralized, width=None)
        return inputs_of(env, group, net, out_keys, config.device)
    size, activation = config.recurrent_size, activation_of(config)
    gain = math.sqrt(2) if config.ortho_init else None
    dense = layers_of(config, group, size, centralized=centralized, activation=activation, gain=gain, hidden=())
    inputs, features = (group.name, state, "inputs"), (group.name, state, "features")
    return TensorDictSequential(
        inputs_of(env, group, nn.Sequential(dense, ACTIVATIONS[activation]()), [inputs], config.device),
        recurrent_layers(config, inputs, features, (group.name, state), n_agents=group.n_agents),
        TensorDictModule(
            make(centralized=False, width=size).to(config.device), in_keys=[features], out_keys=list(out_keys)
        ),
    )


def _actor(config: MAPPOConfig, env: Env, group: Group, recipe: str) -> ProbabilisticActor:
    action = distribution_for(group.action, group.spec[0], type(env).__name__, recipe, group.mask)
    gain = 0.01 if config.ortho_init else None

    def make(out_features: int, last_gain: float | None, **given: Any) -> nn.Module:
        return layers_of(config, group, out_features, activation=activation_of(config), gain=last_gain, **given)

    scaled = len(action.params) == 2
    net = with_scale(config, make, action, gain) if scaled else partial(make, action.width, gain)
    params = [group.key(name) for name in action.params]
    return ProbabilisticActor(
        _network(config, env, group, net, params, centralized=False),
        in_keys=action.reads(params),
        out_keys=[group.action],
        spec=group.spec,
        distribution_class=action.kind,
        distribution_kwargs=action.kwargs,
        return_log_prob=True,
        log_prob_key=group.key("action_log_prob"),
    )


def mappo_policy(config: MAPPOConfig, env: Env) -> TensorDictSequential:
    """The untrained policy of all groups.

    Raises:
        SpecError: if the environment has no groups, or an action of a kind that is not trained.
    """
    return mappo_networks(config, env, config.recipe)[0]
