"""Groups of agents of an environment, and networks for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from rl.core.errors import SpecError
from rl.core.interfaces import Env
from rl.core.keys import REWARD, NestedKey, as_tuple, key_str, leaf_keys
from rl.core.specs import Categorical
from rl.modules import MultiAgentMLP, orthogonal_init
from rl.trainers._build.legal_actions import check_choice
from rl.trainers._build.networks import ACTIVATIONS, BOOKKEEPING, MASK

__all__ = ["Group", "described_groups", "groups_of", "inputs_of", "joined", "layers_of"]

_NO_INPUT = {MASK, "mask", "info", *BOOKKEEPING}


@dataclass(frozen=True)
class Group:
    """A group of agents of an environment.

    Args:
        name: of the group.
        n_agents: number of agents.
        observations: keys that the agents read, and the width of each.
        action: key of the action.
        spec: of the actions of all agents, ``[n_agents, ...]``.
        reward: key of the reward: of each agent, ``[*B, n_agents, 1]``, or of all, ``[*B, 1]``.
        mask: Key of the mask of legal actions, ``(name, "action_mask")``; None if the environment writes none.
        own_flags: the environment writes done flags of each agent.
    """

    name: str
    n_agents: int
    observations: dict[NestedKey, int]
    action: NestedKey
    spec: Any
    reward: NestedKey
    mask: NestedKey | None
    own_flags: bool

    @property
    def width(self) -> int:
        """Width of the input of one agent."""
        return sum(self.observations.values())

    def key(self, name: str) -> tuple[str, str]:
        """Key of an entry of the group."""
        return (self.name, name)

    def loss_keys(self, *names: str) -> dict[str, Any]:
        """`set_keys` of a loss: the reward, entries `names` of the group, and its done flags if it has some."""
        flags = ("done", "terminated") if self.own_flags else ()
        return {"reward": self.reward, **{name: self.key(name) for name in (*names, *flags)}}


def groups_of(env: Env, recipe: str) -> list[Group]:
    """The groups of an environment.

    Raises:
        SpecError: if an action is in no group, a group has several, or its entries have no dimension of agents.
    """
    batch, found = len(env.batch_size), []
    actions, flags = leaf_keys(env.full_action_spec), leaf_keys(env.full_done_spec)
    for key in actions:
        path = as_tuple(key)
        if len(path) != 2:  # group and entry
            raise SpecError(
                f"{recipe} trains groups of agents with one action each, under (group, 'action'); {type(env).__name__}"
                f" has {', '.join(map(key_str, actions))}: train one agent with ppo, dqn or sac"
            )
        name = path[0]
        reward, n_agents = _reward_of(env, name, key, recipe)
        first = (0,) * batch
        spec: Any = env.full_action_spec[key]
        spec = spec[first] if first else spec
        mask = _mask_of(env, name, key, spec, recipe)
        found.append(
            Group(
                name=name,
                n_agents=n_agents,
                observations=_observations(env, name, batch, recipe),
                action=key,
                spec=spec,
                reward=reward,
                mask=mask,
                own_flags=(name, "done") in flags,
            )
        )
    return found


def _reward_of(env: Env, group: str, action: NestedKey, recipe: str) -> tuple[NestedKey, int]:
    """Key of the reward of a group, and the number of its agents."""
    batch, key = len(env.batch_size), (group, "reward")
    rewards, shared = (env.full_reward_spec.get(name, None) for name in (key, REWARD))
    if rewards is not None and len(rewards.shape) == batch + 2:
        return key, int(rewards.shape[batch])
    spec: Any = env.full_action_spec[action]
    own = 0 if isinstance(spec, Categorical) else 1  # dimensions of the action of one agent
    if rewards is None and shared is not None and len(spec.shape) == batch + 1 + own:
        return REWARD, int(spec.shape[batch])
    names = leaf_keys(env.full_reward_spec) if rewards is None else [key]  # a root reward may be the trainer's
    found = {key_str(name): list(env.full_reward_spec[name].shape) for name in names}
    raise SpecError(
        f"{recipe} needs rewards ({group!r}, 'reward') of shape [*B, n_agents, 1], or one 'reward' for all and actions"
        f" with a dimension of agents; {type(env).__name__} has the rewards {found} and actions {list(spec.shape)}."
        " If group_map in --env-kwargs makes groups of one agent without a dimension of agents, leave it out"
    )


def _mask_of(env: Env, group: str, action: NestedKey, spec: Any, recipe: str) -> NestedKey | None:
    """Key of the mask of a group, if there is one."""
    key = (group, MASK)
    if key not in leaf_keys(env.observation_spec):
        return None
    agent = (0,) * (len(env.batch_size) + 1)
    check_choice(recipe, type(env).__name__, key, env.observation_spec[key][agent], action, spec[0])
    return key


def _observations(env: Env, name: str, batch: int, recipe: str) -> dict[NestedKey, int]:
    widths: dict[NestedKey, int] = {}
    for key in leaf_keys(env.observation_spec):
        path = as_tuple(key)
        if path[0] == name and len(path) > 1 and path[1] not in _NO_INPUT:
            spec = env.observation_spec[key]
            widths[key] = math.prod(spec.shape[batch + 1 :])
    if not widths:
        raise SpecError(f"{recipe}: {type(env).__name__} has no observation in the group {name!r}")
    return widths


def described_groups(env: Env, recipe: str) -> str:
    """A line that states what the agents of each group read."""
    parts = [
        f"{group.name!r}: agents {group.n_agents}, each reads {group.width} numbers" for group in groups_of(env, recipe)
    ]
    return "; ".join(parts)


def joined(entries: Sequence[Tensor], dims: Sequence[int]) -> Tensor:
    """Entries as one vector of float32, ``[*B, width]``; `dims` are the dimensions of each without ``[*B]``."""
    flat = [
        entry.unsqueeze(-1) if own == 0 else entry.flatten(-own) if own > 1 else entry
        for entry, own in zip(entries, dims, strict=True)
    ]
    return (flat[0] if len(flat) == 1 else torch.cat(flat, -1)).float()


class _Joined(nn.Module):
    """Entries ``[*B, n_agents, ...]`` as one vector of float32 for each agent, before a network.

    Args:
        net: the network.
        dims: number of dimensions of each entry of one agent.
    """

    def __init__(self, net: nn.Module, dims: Sequence[int]) -> None:
        super().__init__()
        self.net, self.dims = net, list(dims)

    def forward(self, *entries: Tensor) -> Any:
        return self.net(joined(entries, self.dims))


def layers_of(
    config: Any,
    group: Group,
    out_features: int,
    *,
    centralized: bool,
    activation: str,
    gain: float | None,
    more: int = 0,
    width: int | None = None,
    hidden: Sequence[int] | None = None,
) -> nn.Module:
    """The multi-layer perceptron of a group that `config` describes.

    Args:
        config: has `hidden` and `share_params`.
        group: the group.
        out_features: width of the output of one agent.
        centralized: whether each output depends on the inputs of all agents.
        activation: a key of `ACTIVATIONS`.
        gain: scale of the last layer's orthogonal initial weights; torch's initial weights if None.
        more: width of further inputs of one agent.
        width: of an input of one agent that takes the place of the observations.
        hidden: widths of the hidden layers; those of `config` if None.
    """
    net = MultiAgentMLP(
        (group.width if width is None else width) + more,
        out_features,
        group.n_agents,
        centralized=centralized,
        share_params=config.share_params,
        num_cells=list(config.hidden if hidden is None else hidden),
        activation_class=ACTIVATIONS[activation],
    )
    return net if gain is None else orthogonal_init(net, math.sqrt(2), gain)


def inputs_of(
    env: Env, group: Group, net: nn.Module, out_keys: Sequence[NestedKey], device: str, more: Sequence[NestedKey] = ()
) -> TensorDictModule:
    """A network that reads the observations of a group.

    Args:
        env: for their shapes.
        group: the group.
        net: from ``[*B, n_agents, width]``.
        out_keys: what it writes.
        device: where it is.
        more: further entries that it reads, vectors of each agent.
    """
    batch = len(env.batch_size)
    dims = [len(env.observation_spec[key].shape) - batch - 1 for key in group.observations]
    joined = _Joined(net, [*dims, *[1] * len(more)])
    return TensorDictModule(joined.to(device), in_keys=[*group.observations, *more], out_keys=list(out_keys))
