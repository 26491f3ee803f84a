"""Settings of the recipes of several agents. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

__all__ = ["GroupFields"]


@dataclass(frozen=True, kw_only=True)
class GroupFields:
    """Settings of groups of agents.

    Args:
        share_params: the agents of a group have the same parameters; else each has its own.
        report_group: group whose mean reward is the reported return, in metrics and evaluations; the mean of all agents
            if empty.
        max_episode_steps: number of steps after which episodes are truncated; 0 for the environment's own limit, if it
            has one.

    Attributes:
        multi_agent: the environment has groups of agents.
        absent: settings of one agent, which recipes of groups do not have.
    """

    multi_agent: ClassVar[bool] = True
    absent: ClassVar[tuple[str, ...]] = (
        "normalize_observation",
        "normalize_reward",
        "clip_actions",
        "frame_stack",
        "atari",
        "observation_layout",
        "observation_indices",
    )

    share_params: bool = True
    report_group: str = ""
    max_episode_steps: int = 100
