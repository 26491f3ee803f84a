"""Settings of the recipes of several agents. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rl.trainers._config.fields import check

__all__ = ["GroupFields"]

_NOT_HERE = (
    "normalize_observation",
    "normalize_reward",
    "clip_actions",
    "atari",
    "observation_indices",
)


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
        recipe: name of the recipe, which a subclass sets.
    """

    multi_agent: ClassVar[bool] = True
    recipe: ClassVar[str]

    share_params: bool = True
    report_group: str = ""
    max_episode_steps: int = 100

    def __post_init__(self) -> None:
        above: Any = super()  # the settings of the algorithm
        above.__post_init__()
        unset = (lambda given: not given, f"left out with {self.recipe}, which does not know it")
        check(self, dict.fromkeys(_NOT_HERE, unset))
        check(
            self,
            {
                "frame_stack": (lambda n: n == 1, f"left out with {self.recipe}"),
                "observation_layout": (lambda name: name == "auto", f"left out with {self.recipe}"),
            },
        )
