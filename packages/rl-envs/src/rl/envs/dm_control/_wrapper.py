"""`DMControlEnv` and `DMControlWrapper`: environments of dm_control and dm_env."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch

from rl.core.arguments import as_integer
from rl.core.errors import SpecError
from rl.core.specs import Bounded
from rl.envs import _foreign
from rl.envs._ids import Ids, check_id
from rl.envs._libraries import import_library
from rl.envs.dm_control._simulator import DMSimulator
from rl.envs.dm_control._specs import array_places
from rl.envs.gym._simulator_env import SimulatorEnv
from rl.envs.gym._stepping import Codec, GymLeaves

__all__ = ["DMControlEnv", "DMControlWrapper"]


@_foreign.dm_control
class DMControlWrapper(SimulatorEnv):
    """Wrapper of an environment with the interface of dm_env, such as those of dm_control.

    Writes the observations of the simulator by name, in its dtype (a single number as ``[1]``), ``reward`` float32
    ``[1]``, and ``done``, ``terminated``, ``truncated`` bool ``[1]``. Reads ``action``, float32 where the simulator
    takes float64. A `DiscreteArray` is a one-hot vector, int64, unless `categorical_action_encoding`. The last time
    step is terminated if its discount is 0, and truncated otherwise, as at the time limit. The environment has no
    batch: see `SerialEnv` and `ParallelEnv`.

    Args:
        env: the environment.
        categorical_action_encoding: integers instead of one-hot vectors, in actions and observations.
        device: device of the tensors; the CPU if None.
        frame_skip: number of times each action is repeated; rewards are added up, and the end of an episode stops it.
        from_pixels: render after every step, into ``pixels`` uint8 ``[H, W, 3]``.
        pixels_only: write ``pixels`` instead of the observations.
        camera_id: camera of the frames.
        render_kwargs: for ``physics.render``, such as ``{"height": 84, "width": 84}``.

    Raises:
        SpecError: if `env` is no dm_env environment, or an array has no spec.

    Example:
        >>> from dm_control import suite
        >>> env = DMControlWrapper(suite.load("cartpole", "balance"))
        >>> env.rollout(5)["position"].shape
        torch.Size([5, 3])
    """

    _rename = "rename it with a wrapper of the simulator"

    def __init__(
        self,
        env: Any,
        *,
        categorical_action_encoding: bool = False,
        device: torch.device | str | int | None = None,
        frame_skip: int | None = None,
        from_pixels: bool = False,
        pixels_only: bool = False,
        camera_id: int = 0,
        render_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        owner = type(self).__name__
        skip = 1 if frame_skip is None else as_integer(frame_skip, owner, "frame_skip", 1)
        if not callable(getattr(env, "action_spec", None)) or not callable(getattr(env, "observation_spec", None)):
            raise SpecError(
                f"{owner} wraps a dm_env environment, got {env!r:.100}: make it with dm_control.suite.load(domain,"
                " task), or use DMControlEnv(domain, task)"
            )
        if pixels_only and not from_pixels:
            raise SpecError(f"{owner}: pixels_only=True needs from_pixels=True")
        super().__init__(device=device)
        self._env = env
        encoding = {"categorical": categorical_action_encoding}
        seen = array_places(env.observation_spec(), "observation", **encoding, action=False)
        acts = array_places(env.action_spec(), "action", **encoding, action=True)
        shown = [] if pixels_only else seen
        codec = Codec(
            shown, acts, {}, batched=False, device=self.device, owner=type(getattr(env, "task", env)).__name__
        )
        simulator = DMSimulator(env, skip, {"camera_id": camera_id, **(render_kwargs or {})})
        frame = None
        if from_pixels:
            frame = Bounded(0, 255, shape=np.shape(simulator.env.render()), dtype=torch.uint8)
        self._use(GymLeaves([simulator], codec, pixels=from_pixels), frame)

    def _is_like(self, other: Any) -> bool:
        one, two = self._env, other.dm_env
        return one.observation_spec() == two.observation_spec() and one.action_spec() == two.action_spec()

    @property
    def dm_env(self) -> Any:
        """The wrapped environment."""
        return self._env

    def render(self, **kwargs: Any) -> Any:
        """Render a frame, uint8 ``[H, W, 3]``; `kwargs` are for ``physics.render``."""
        return self._env.physics.render(**kwargs)

    def _label(self) -> str:
        return type(getattr(self._env, "task", self._env)).__name__

    def __repr__(self) -> str:
        return f"{type(self).__name__}(env={self._label()}, batch_size={self.batch_size}, device={self.device})"


def _suite() -> Any:
    import_library("mujoco", needed_by="DMControlEnv", extra="dm-control", below="4")
    return import_library("dm_control.suite", needed_by="DMControlEnv", extra="dm-control", at_least="1.0.50")


def _tasks(suite: Any) -> dict[str, tuple[str, str]]:
    """Domain and task by id, such as ``cheetah-run``."""
    return {f"{domain}-{task}": (domain, task) for domain, task in suite.ALL_TASKS}


@_foreign.dm_control
class DMControlEnv(DMControlWrapper):
    """A task of the dm_control suite; see `DMControlWrapper` for what it reads and writes.

    Args:
        env_name: domain, such as ``"cheetah"``; or the whole id, ``"cheetah-run"`` or ``"cheetah/run"``.
        task_name: task, such as ``"run"``; part of `env_name` if None.
        categorical_action_encoding: see `DMControlWrapper`, as for the following ones.
        device: device of the tensors.
        frame_skip: number of times each action is repeated.
        from_pixels: render after every step.
        pixels_only: write ``pixels`` instead of the observations.
        camera_id: camera of the frames.
        render_kwargs: for ``physics.render``.
        suite_kwargs: for ``dm_control.suite.load``: ``task_kwargs``, ``environment_kwargs``, ``visualize_reward``.

    Raises:
        UnknownComponentError: if there is no such task.
        MissingExtraError: if dm_control is not installed, or MuJoCo has version 4 or later.

    Example:
        >>> env = DMControlEnv("cartpole", "balance")
        >>> env
        DMControlEnv(env=cartpole-balance, batch_size=torch.Size([]), device=None)
        >>> env.action_spec.shape
        torch.Size([1])
    """

    available_envs: ClassVar[Ids] = Ids(lambda: _tasks(_suite()))
    """Ids of all tasks of the suite."""

    def __init__(
        self,
        env_name: str,
        task_name: str | None = None,
        *,
        categorical_action_encoding: bool = False,
        device: torch.device | str | int | None = None,
        frame_skip: int | None = None,
        from_pixels: bool = False,
        pixels_only: bool = False,
        camera_id: int = 0,
        render_kwargs: Mapping[str, Any] | None = None,
        **suite_kwargs: Any,
    ) -> None:
        suite = _suite()
        name = (env_name if task_name is None else f"{env_name}-{task_name}").replace("/", "-")
        tasks = _tasks(suite)
        check_id("dm_control", name, tasks)
        super().__init__(
            suite.load(*tasks[name], **suite_kwargs),
            categorical_action_encoding=categorical_action_encoding,
            device=device,
            frame_skip=frame_skip,
            from_pixels=from_pixels,
            pixels_only=pixels_only,
            camera_id=camera_id,
            render_kwargs=render_kwargs,
        )
        self.env_name = name

    def _label(self) -> str:
        return self.env_name
