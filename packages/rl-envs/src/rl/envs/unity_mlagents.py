"""Scenes of Unity ML-Agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from rl.core.arguments import foreign_arguments
from rl.core.errors import ArgumentError, SpecError
from rl.envs._groups import MarlGroupMapType
from rl.envs._libraries import Ids, check_id, import_library
from rl.envs.gym._make import gymnasium
from rl.envs.pettingzoo import ParallelGame, PettingZooWrapper

__all__ = ["UnityMLAgentsEnv", "UnityMLAgentsWrapper"]


spaces = gymnasium.spaces


class Scene(ParallelGame):
    """A ``mlagents_envs.base_env.BaseEnv`` with the members of `ParallelGame`.

    Unity respawns agents that have ended under a new number; here they take no part until the scene is reset.

    Args:
        env: The environment of Unity.
        action_tuple: Class ``mlagents_envs.base_env.ActionTuple``.

    Attributes:
        possible_agents: Names of the agents that the scene begins with, ``<behavior>_<number>``.
    """

    def __init__(self, env: Any, action_tuple: Any) -> None:
        super().__init__(env)
        self._action_tuple = action_tuple
        self._names: dict[tuple[str, int], str] = {}  # by behavior and number, of this episode
        self._behavior_of: dict[str, str] = {}
        env.reset()
        self._specs: Mapping[str, Any] = env.behavior_specs
        self._deciding = self._decisions()
        self.possible_agents = self._start()
        if not self.possible_agents:
            raise SpecError(f"the scene {env!r:.100} has no agent that asks for a decision after its reset")
        self._behavior_of = {name: behavior for (behavior, _), name in self._names.items()}

    def _decisions(self) -> dict[str, Any]:
        return {behavior: self.env.get_steps(behavior)[0] for behavior in self._specs}

    def _start(self) -> list[str]:
        """Name the agents of a scene that has just been reset."""
        titles = [behavior.partition("?")[0] for behavior in self._specs]
        self._names = {}
        for behavior, title in zip(self._specs, titles, strict=True):
            name = title if titles.count(title) == 1 else behavior.replace("?team=", "_team")
            for index, number in enumerate(sorted(self._deciding[behavior].agent_id)):
                self._names[behavior, int(number)] = f"{name}_{index}"
        return list(self._names.values())

    # ---- spaces

    def observation_space(self, agent: str) -> Any:
        """Space of what an agent observes: a `Box`, or a `Dict` of them by the names of its sensors."""
        sensors = self._specs[self._behavior_of[agent]].observation_specs
        boxes: dict[str, Any] = {one.name: spaces.Box(-np.inf, np.inf, tuple(one.shape), np.float32) for one in sensors}
        return next(iter(boxes.values())) if len(boxes) == 1 else spaces.Dict(boxes)

    def action_space(self, agent: str) -> Any:
        """Space of an agent's actions; a `Dict` with ``continuous`` and ``discrete`` if it has both."""
        spec = self._specs[self._behavior_of[agent]].action_spec
        branches = [int(n) for n in spec.discrete_branches]
        found = {}
        if spec.continuous_size:
            found["continuous"] = spaces.Box(-1, 1, (spec.continuous_size,), np.float32)
        if branches:
            found["discrete"] = spaces.Discrete(branches[0]) if len(branches) == 1 else spaces.MultiDiscrete(branches)
        return next(iter(found.values())) if len(found) == 1 else spaces.Dict(found)

    # ---- episodes

    def _reset(self, seed: int | None) -> None:
        del seed  # Unity takes one when the process starts
        self.env.reset()
        self._deciding = self._decisions()
        names = self._start()
        if names != self.possible_agents:
            raise SpecError(f"the scene began with the agents {self.possible_agents}, and has {names} after a reset")
        self.observations, self.infos, self.acting = {}, {}, []
        self.alive = list(names)
        self._look()

    def step(self, actions: Mapping[str, Any]) -> None:
        """Simulate until an agent of this episode needs a decision, or all have ended."""
        self.rewards, self.observations, self.infos = dict.fromkeys(self.alive, 0.0), {}, {}
        self.acting = []
        while self.alive and not self.acting:
            for behavior, steps in self._deciding.items():
                if len(steps.agent_id):
                    self.env.set_actions(behavior, self._actions(behavior, steps, actions))
            actions = {}
            self.env.step()
            self._deciding = self._decisions()
            for behavior in self._specs:
                self._end(behavior, self.env.get_steps(behavior)[1])
            self._look()

    def _actions(self, behavior: str, steps: Any, actions: Mapping[str, Any]) -> Any:
        """Return the actions of the agents of a behavior that ask for one; zeros for those that have left."""
        spec, count = self._specs[behavior].action_spec, len(steps.agent_id)
        continuous = np.zeros((count, spec.continuous_size), np.float32)
        discrete = np.zeros((count, len(spec.discrete_branches)), np.int32)
        for row, number in enumerate(steps.agent_id):
            action = actions.get(self._names.get((behavior, int(number)), ""))
            if action is None:
                continue
            if isinstance(action, Mapping):
                continuous[row], discrete[row] = action["continuous"], action["discrete"]
            elif spec.continuous_size:
                continuous[row] = action
            else:
                discrete[row] = action
        return self._action_tuple(continuous=continuous, discrete=discrete)

    def _end(self, behavior: str, steps: Any) -> None:
        """Take note of the agents that have ended."""
        for row, number in enumerate(steps.agent_id):
            name = self._names.pop((behavior, int(number)), None)
            if name is not None:
                self._receive(behavior, steps, row, name)
                (self.truncated if steps.interrupted[row] else self.terminated).add(name)
                self.alive.remove(name)

    def _look(self) -> None:
        """Read the agents that ask for a decision."""
        for behavior, steps in self._deciding.items():
            for row, number in enumerate(steps.agent_id):
                name = self._names.get((behavior, int(number)))
                if name is not None:
                    self._receive(behavior, steps, row, name)
                    self.acting.append(name)
                    if steps.action_mask:
                        mask = np.concatenate([~branch[row] for branch in steps.action_mask])
                        self.infos = {**self.infos, name: {"action_mask": mask}}

    def _receive(self, behavior: str, steps: Any, row: int, name: str) -> None:
        sensors = self._specs[behavior].observation_specs
        values = [values[row] for values in steps.obs]
        seen = values[0] if len(values) == 1 else {one.name: v for one, v in zip(sensors, values, strict=True)}
        self.observations = {**self.observations, name: seen}
        reward = float(steps.reward[row]) + float(steps.group_reward[row])
        self.rewards = {**self.rewards, name: self.rewards.get(name, 0.0) + reward}

    def close(self) -> None:
        """Stop Unity."""
        self.env.close()


def _library(module: str) -> Any:
    return import_library(
        f"mlagents_envs.{module}", needed_by="UnityMLAgentsEnv", extra="unity-mlagents", distribution="mlagents-envs"
    )


@foreign_arguments()
class UnityMLAgentsWrapper(PettingZooWrapper):
    """Wrapper of a Unity ML-Agents environment.

    Keys are those of `PettingZooWrapper`, with ``("g", "mask")``: the agents that act in the next step. An agent is
    named after its behavior with a number, ``"Walker_0"``, so that the default groups are the behaviors; behaviors of
    several teams are ``"Soccer_team0"``, ``"Soccer_team1"``. ``reward`` is that of the agent plus that of its group in
    Unity. An agent whose episode was interrupted in Unity is truncated. One that has ended takes no part, though Unity
    respawns it, until the scene is reset.

    Args:
        env: A ``mlagents_envs.environment.UnityEnvironment``.
        group_map: Names of the agents by group, or a `MarlGroupMapType`; one group for each behavior if None.
        categorical_actions: Whether to use integers instead of one-hot vectors.
        done_on_any: Whether to end the episode when an agent has ended; otherwise, when all have.
        device: Device of the tensors; the CPU if None.

    Raises:
        ArgumentError: If `env` is no Unity environment, or the groups do not fit the agents.
        SpecError: If no agent asks for a decision after the reset.
        MissingExtraError: If ``mlagents-envs`` is not installed.

    It is tested against the documented interface only, since scenes are programs of their own.
    """

    def __init__(
        self,
        env: Any,
        *,
        group_map: MarlGroupMapType | Mapping[str, Sequence[str]] | None = None,
        categorical_actions: bool = True,
        done_on_any: bool = False,
        device: torch.device | str | int | None = None,
    ) -> None:
        super().__init__(
            env,
            group_map=group_map,
            use_mask=True,
            categorical_actions=categorical_actions,
            done_on_any=done_on_any,
            device=device,
        )

    def _open(self, env: Any) -> tuple[Any, Any]:

        if not hasattr(env, "behavior_specs") or not hasattr(env, "get_steps"):
            raise ArgumentError(
                f"{type(self).__name__} wraps a mlagents_envs.environment.UnityEnvironment, got {env!r:.100}: use"
                " UnityMLAgentsEnv(file_name) to start a scene"
            )
        scene = Scene(env, _library("base_env").ActionTuple)
        return scene, scene

    @property
    def unity_env(self) -> Any:
        """The wrapped environment."""
        return self._env.env


@foreign_arguments()
class UnityMLAgentsEnv(UnityMLAgentsWrapper):
    """A Unity ML-Agents scene by its program; see `UnityMLAgentsWrapper` for what it reads and writes.

    Args:
        file_name: Path of the program; None to connect to the Unity editor.
        registered_name: Name in Unity's registry instead, such as ``"3DBall"``; the program is downloaded.
        group_map: Groups as in the wrapper; `categorical_actions`, `done_on_any` and `device` too.
        unity_kwargs: Arguments of ``UnityEnvironment``: ``seed``, ``worker_id``, ``no_graphics`` and others. The seed
            of a scene is set here; `set_seed` does not change it.

    Raises:
        UnknownComponentError: If there is no such registered name.
        MissingExtraError: If ``mlagents-envs`` is not installed.
    """

    available_envs: ClassVar[Ids] = Ids(lambda: _library("registry").default_registry)
    """Names in Unity's registry."""

    def __init__(
        self,
        file_name: str | None = None,
        *,
        registered_name: str | None = None,
        group_map: MarlGroupMapType | Mapping[str, Sequence[str]] | None = None,
        categorical_actions: bool = True,
        done_on_any: bool = False,
        device: torch.device | str | int | None = None,
        **unity_kwargs: Any,
    ) -> None:
        if registered_name is None:
            made = _library("environment").UnityEnvironment(file_name, **unity_kwargs)
        else:
            registry = _library("registry").default_registry
            check_id("Unity ML-Agents", registered_name, registry)
            made = registry[registered_name].make(**unity_kwargs)
        super().__init__(
            made,
            group_map=group_map,
            categorical_actions=categorical_actions,
            done_on_any=done_on_any,
            device=device,
        )
