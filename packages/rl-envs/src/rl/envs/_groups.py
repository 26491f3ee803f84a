"""Groups of agents: which agents share a nested TensorDict, and under what name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from rl.core.errors import ArgumentError
from rl.core.mdp import FLAGS

GroupMap = Mapping[str, Sequence[str]]


class MarlGroupMapType(Enum):
    """Standard groupings of agents.

    - `ALL_IN_ONE_GROUP`: one group, ``"agents"``, whose entries have an agent dimension.
    - `ONE_GROUP_PER_AGENT`: a group for each agent, of its name, whose entries have no agent dimension.

    An environment also takes the name of one as a string, in upper or lower case.

    Example:
        >>> MarlGroupMapType.ONE_GROUP_PER_AGENT.get_group_map(["red", "blue"])
        {'red': ['red'], 'blue': ['blue']}
    """

    ALL_IN_ONE_GROUP = 1
    ONE_GROUP_PER_AGENT = 2

    def get_group_map(self, agent_names: Sequence[str]) -> dict[str, list[str]]:
        """Return the names of the agents of each group."""
        if self is MarlGroupMapType.ALL_IN_ONE_GROUP:
            return {"agents": list(agent_names)}
        return {name: [name] for name in agent_names}


def check_marl_grouping(group_map: GroupMap, agent_names: Sequence[str]) -> None:
    """Raise unless every agent is in exactly one group.

    Raises:
        ArgumentError: If there are no agents, `group_map` is no mapping from names to sequences of agents, a group is
            empty, or an agent is unknown, in no group or in several.

    Example:
        >>> check_marl_grouping({"team": ["red"]}, ["red", "blue"])
        Traceback (most recent call last):
        rl.core.errors.ArgumentError: group_map has no group for the agent 'blue': ...
    """
    if not agent_names:
        raise ArgumentError("group_map: the environment has no agents")
    _check_form(group_map)
    seen: dict[str, str] = {}
    for group, agents in group_map.items():
        for agent in agents:
            if agent not in agent_names:
                raise ArgumentError(
                    f"group_map has an unknown agent {agent!r}; the agents are {', '.join(agent_names)}"
                )
            if agent in seen:
                raise ArgumentError(f"group_map has the agent {agent!r} twice, in {seen[agent]!r} and {group!r}")
            seen[agent] = group
    for agent in agent_names:
        if agent not in seen:
            raise ArgumentError(f"group_map has no group for the agent {agent!r}: add it to one")


def _check_form(group_map: Any) -> None:
    if not isinstance(group_map, Mapping):
        types = " or ".join(repr(name.lower()) for name in MarlGroupMapType.__members__)
        raise ArgumentError(
            f"group_map must be a mapping from groups to lists of agents, or {types}, got {group_map!r}"
        )
    for group, agents in group_map.items():
        if not isinstance(group, str) or not group:
            raise ArgumentError(f"group_map has the group {group!r}: its name must be a string that is not empty")
        if isinstance(agents, str):
            raise ArgumentError(f"group_map has a string in the group {group!r}: write [{agents!r}]")
        if not agents:
            raise ArgumentError(f"group_map has no agents in the group {group!r}: leave it out")


def groups_by_name(agent_names: Sequence[str]) -> dict[str, list[str]]:
    """Group agents by their names without the number at the end.

    Example:
        >>> groups_by_name(["wolf_0", "wolf_1", "shepherd"])
        {'wolf': ['wolf_0', 'wolf_1'], 'shepherd': ['shepherd']}
    """
    found: dict[str, list[str]] = {}
    for name in agent_names:
        numbered = re.fullmatch(r"(.+)[_ ]\d+", name)
        found.setdefault(numbered[1] if numbered else name, []).append(name)
    return found


@dataclass(frozen=True)
class AgentGroup:
    """A group of agents.

    Args:
        name: Key of the nested TensorDict.
        agents: Names of the agents, in the order of the agent dimension.
        stacked: Whether entries have an agent dimension, the first one after the batch.
    """

    name: str
    agents: tuple[str, ...]
    stacked: bool

    def shape(self, *trailing: int) -> tuple[int, ...]:
        """Shape of an entry that is `trailing` for one agent."""
        return (len(self.agents), *trailing) if self.stacked else trailing


def agent_groups(
    group_map: MarlGroupMapType | GroupMap | str | None,
    agent_names: Sequence[str],
    default: GroupMap,
    reserved: Sequence[str],
) -> list[AgentGroup]:
    """Return the groups for the argument `group_map` of an environment.

    Args:
        group_map: Groups by name, a standard grouping or its name, or None for the default.
        agent_names: All agents.
        default: The groups for None.
        reserved: Names of root entries, which no group may have.

    Raises:
        ArgumentError: If the groups do not fit the agents, or one has a reserved name.
    """
    if isinstance(group_map, str):  # from a command line
        group_map = MarlGroupMapType.__members__.get(group_map.upper(), group_map)
    stacked = group_map is not MarlGroupMapType.ONE_GROUP_PER_AGENT
    if group_map is None:
        names: Any = default
    else:
        names = group_map.get_group_map(agent_names) if isinstance(group_map, MarlGroupMapType) else group_map
    check_marl_grouping(names, agent_names)
    taken = [name for name in names if name in {"next", *FLAGS, *reserved}]
    if taken:
        raise ArgumentError(f"group_map has a group {taken[0]!r}, which is the name of another entry: rename it")
    return [AgentGroup(name, tuple(agents), stacked) for name, agents in names.items()]
