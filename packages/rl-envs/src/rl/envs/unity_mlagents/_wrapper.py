"""`UnityMLAgentsEnv` and `UnityMLAgentsWrapper`: scenes of Unity ML-Agents, with several agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from rl.core.errors import SpecError
from rl.envs import _foreign
from rl.envs._groups import MarlGroupMapType
from rl.envs._ids import Ids, check_id
from rl.envs._libraries import import_library
from rl.envs.pettingzoo._wrapper import PettingZooWrapper

__all__ = ["UnityMLAgentsEnv", "UnityMLAgentsWrapper"]


def _library(module: str) -> Any:
    return import_library(
        f"mlagents_envs.{module}", needed_by="UnityMLAgentsEnv", extra="unity-mlagents", distribution="mlagents-envs"
    )


@_foreign.unity
class UnityMLAgentsWrapper(PettingZooWrapper):
    """Wrapper of a Unity ML-Agents environment.

    Keys are those of `PettingZooWrapper`, with ``("g", "mask")``: the agents that act in the next step. An agent is
    named after its behavior with a number, ``"Walker_0"``, so that the default groups are the behaviors; behaviors of
    several teams are ``"Soccer_team0"``, ``"Soccer_team1"``. ``reward`` is that of the agent plus that of its group in
    Unity. An agent whose episode was interrupted in Unity is truncated. One that has ended takes no part, though Unity
    respawns it, until the scene is reset.

    Args:
        env: a ``mlagents_envs.environment.UnityEnvironment``.
        group_map: names of the agents by group, or a `MarlGroupMapType`; one group for each behavior if None.
        categorical_actions: integers instead of one-hot vectors.
        done_on_any: end the episode when an agent has ended; if false, when all have.
        device: device of the tensors; the CPU if None.

    Raises:
        SpecError: if `env` is no Unity environment, no agent asks for a decision after the reset, or the groups do not
            fit the agents.
        MissingExtraError: if ``mlagents-envs`` is not installed.

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
        from rl.envs.unity_mlagents._scene import Scene

        if not hasattr(env, "behavior_specs") or not hasattr(env, "get_steps"):
            raise SpecError(
                f"{type(self).__name__} wraps a mlagents_envs.environment.UnityEnvironment, got {env!r:.100}: use"
                " UnityMLAgentsEnv(file_name) to start a scene"
            )
        scene = Scene(env, _library("base_env").ActionTuple)
        return scene, scene

    @property
    def unity_env(self) -> Any:
        """The wrapped environment."""
        return self._env.env


@_foreign.unity
class UnityMLAgentsEnv(UnityMLAgentsWrapper):
    """A Unity ML-Agents scene by its program; see `UnityMLAgentsWrapper` for what it reads and writes.

    Args:
        file_name: path of the program; None to connect to the Unity editor.
        registered_name: name in Unity's registry instead, such as ``"3DBall"``; the program is downloaded.
        group_map: as in the wrapper; `categorical_actions`, `done_on_any` and `device` too.
        unity_kwargs: for ``UnityEnvironment``: ``seed``, ``worker_id``, ``no_graphics`` and others. The seed of a
            scene is set here; `set_seed` does not change it.

    Raises:
        UnknownComponentError: if there is no such registered name.
        MissingExtraError: if ``mlagents-envs`` is not installed.
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
