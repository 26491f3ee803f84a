"""Groups of agents of an environment: their keys and specs, and what they read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from rl.core.errors import SpecError
from rl.core.interfaces import Env
from rl.core.keys import REWARD, NestedKey, as_tuple, key_str, leaf_keys
from rl.core.specs import Bounded, Categorical, OneHot, Unbounded
from rl.trainers.actions import check_choice
from rl.trainers.actors import is_bounded
from rl.trainers.networks import BOOKKEEPING, MASK, described, described_observations, yaml_key

__all__ = ["Group", "bounded_groups", "choice_of", "described_groups", "described_inputs", "groups_of"]

_NO_INPUT = {MASK, "mask", "info", *BOOKKEEPING}


@dataclass(frozen=True)
class Group:
    """A group of agents of an environment.

    Args:
        name: Name of the group.
        n_agents: Number of agents.
        observations: Keys that the agents read, and the width of each.
        action: Key of the action.
        spec: Spec of the actions of all agents, ``[n_agents, ...]``.
        reward: Key of the reward: of each agent, ``[*B, n_agents, 1]``, or of all, ``[*B, 1]``.
        mask: Key of the mask of legal actions, ``(name, "action_mask")``; None if the environment writes none.
        own_flags: The environment writes done flags of each agent.
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
    """Return the groups of an environment.

    Raises:
        SpecError: If an action is in no group, a group has several, or its entries have no dimension of agents.
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


def choice_of(env: Env, group: Group, recipe: str) -> Categorical | OneHot:
    """Return the spec of the choice of one agent.

    Raises:
        SpecError: If the actions of the group are no choices.
    """
    spec = group.spec[0]
    if not isinstance(spec, (Categorical, OneHot)):
        raise SpecError(
            f"{recipe} trains discrete actions; {key_str(group.action)} of {type(env).__name__} is"
            f" {described(spec)}: train it with mappo or maddpg, or for VMAS and MPE2 set"
            " --env-kwargs '{continuous_actions: false}'"
        )
    return spec


def bounded_groups(env: Env, recipe: str) -> list[Group]:
    """Return the groups, whose actions are bounded floats."""
    groups = groups_of(env, recipe)
    for group in groups:
        if not is_bounded(group.spec, 2):  # agents and vector
            raise SpecError(
                f"{recipe} trains vectors of bounded floats; {key_str(group.action)} of {type(env).__name__} is"
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


def described_groups(env: Env, recipe: str) -> str:
    """Describe in a line what the agents of each group read."""
    parts = [
        f"{group.name!r}: agents {group.n_agents}, each reads {group.width} numbers" for group in groups_of(env, recipe)
    ]
    return "; ".join(parts)


def described_inputs(config: Any, env: Env) -> str:
    """Describe in a line what a policy reads: each observation, or what the agents of each group read."""
    if config.multi_agent:
        return described_groups(env, config.recipe)
    return described_observations(env, config.observation_layout)
