"""The two interfaces of PettingZoo behind one: all agents act at once, or they take turns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["ParallelGame", "TurnGame"]


class ParallelGame:
    """A ``pettingzoo.ParallelEnv`` and what it last returned.

    Attributes:
        observations: of the agents that took part in the last step, by name; `infos` and `rewards` too.
        terminated: agents that have terminated in this episode.
        truncated: agents that have been truncated in this episode.
        acting: agents that act in the next step.
        alive: agents that are still in the episode.

    Args:
        env: the environment.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.observations: Mapping[str, Any] = {}
        self.infos: Mapping[str, Any] = {}
        self.rewards: Mapping[str, float] = {}
        self.terminated: set[str] = set()
        self.truncated: set[str] = set()
        self.acting: list[str] = []
        self.alive: list[str] = []

    def reset(self, seed: int | None) -> None:
        """Begin an episode."""
        self.terminated, self.truncated, self.rewards = set(), set(), {}
        self._reset(seed)

    def _reset(self, seed: int | None) -> None:
        self.observations, self.infos = self.env.reset(seed=seed)
        self.acting = self.alive = list(self.env.agents)

    def step(self, actions: Mapping[str, Any]) -> None:
        """Take a step with the actions of the agents in `acting`."""
        self.observations, self.rewards, terminated, truncated, self.infos = self.env.step(actions)
        self._record(terminated, truncated)
        self.acting = self.alive = list(self.env.agents)

    def _record(self, terminated: Mapping[str, bool], truncated: Mapping[str, bool]) -> None:
        self.terminated.update(agent for agent, over in terminated.items() if over)
        self.truncated.update(agent for agent, over in truncated.items() if over)


class TurnGame(ParallelGame):
    """A ``pettingzoo.AECEnv``, whose agents take turns, with the members of `ParallelGame`.

    Agents that are done leave at once, without a step of their own.
    """

    def _reset(self, seed: int | None) -> None:
        self.env.reset(seed=seed)
        self._look()

    def step(self, actions: Mapping[str, Any]) -> None:
        """Take the turn of the agent in `acting`."""
        env = self.env  # wrappers of PettingZoo make its attributes slow: each is read once
        env.step(actions[self.acting[0]])
        self.rewards = dict(env.rewards)
        terminated, truncated = env.terminations, env.truncations
        self._record(terminated, truncated)
        self._look()
        if self.acting and (terminated[self.acting[0]] or truncated[self.acting[0]]):
            before, infos = self.observations, self.infos
            while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
                env.step(None)  # removes an agent that is done
            self._look()
            self.observations, self.infos = {**before, **self.observations}, {**infos, **self.infos}

    def _look(self) -> None:
        env = self.env
        self.alive = list(env.agents)
        self.observations = {agent: env.observe(agent) for agent in self.alive}
        self.infos = dict(env.infos)
        self.acting = [env.agent_selection] if self.alive else []
