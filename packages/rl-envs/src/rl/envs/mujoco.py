"""Batched tasks on MuJoCo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from rl.core.arguments import as_integer
from rl.core.errors import ArgumentError, MissingExtraError, RLError
from rl.core.interfaces import Leaves
from rl.core.specs import Bounded, Composite, Unbounded
from rl.envs._libraries import import_library
from rl.envs.base._base import EnvBase
from rl.envs.base._leaf import LeafEnvBase
from rl.envs.base._specs import flag_spec

__all__ = ["AntEnv", "HalfCheetahEnv", "HopperEnv", "HumanoidEnv", "MujocoEnv", "Walker2dEnv"]


Array = np.ndarray[Any, Any]


class MujocoEnv(LeafEnvBase):
    """Base class of tasks on MuJoCo, ``[num_envs]`` simulations stepped by threads. Needs ``rl-envs[mujoco]``.

    Reads ``action`` (float32 ``[*B, actuators]`` within their ranges). Writes ``observation`` (float64 ``[*B, d]``),
    ``reward`` (float32 ``[*B, 1]``), ``done`` and ``terminated`` (bool ``[*B, 1]``); with `from_pixels` also
    ``pixels`` (uint8 ``[*B, H, W, 3]``).

    A task writes two methods on arrays of all simulations, which `field` returns:

    - ``_observe()``: the observations ``[n, d]``.
    - ``_judge(before, after, action)``: rewards ``[n]`` and whether the episodes have terminated ``[n]``, from the
      places before and after the step. ``_places()`` says what a place is: ``qpos[:, :1]`` unless it is overridden.

    It sets `xml_file` and the other class attributes, and may override ``_start(generator)``, the first ``qpos`` and
    ``qvel`` of an episode: uniform noise of `reset_noise_scale` around those of the model.

    Args:
        num_envs: Number of simulations; no batch if None.
        xml_file: Model, a path or a name among those that Gymnasium has; that of the task if None.
        frame_skip: Simulation steps in a step; that of the task if None.
        reset_noise_scale: Noise of the first state; that of the task if None.
        num_threads: Threads; as many as there are cores if None, at most `num_envs`.
        device: Device of the tensors; the CPU if None.
        from_pixels: Whether to render after every step. Needs a renderer, such as ``MUJOCO_GL=egl``.
        render_size: Height and width of ``pixels``.
        camera: Number or name of the camera.

    Raises:
        MissingExtraError: If MuJoCo is not installed, or has another version; if Gymnasium's models are missing.
        ArgumentError: If there is no such model.

    Example:
        >>> class Reach(MujocoEnv):
        ...     xml_file, frame_skip = "reacher.xml", 2
        ...     def _observe(self):
        ...         return np.concatenate([self.field("qpos"), self.field("qvel")], axis=1)
        ...     def _judge(self, before, after, action):
        ...         return -np.square(action).sum(1), np.zeros(len(action), bool)
        >>> Reach(num_envs=2).rollout(3)["observation"].shape
        torch.Size([2, 3, 8])
    """

    xml_file: ClassVar[str] = ""
    frame_skip: int = 1
    reset_noise_scale: float = 0.0
    #: the time limit that belongs to the task; nothing here enforces it
    max_episode_steps: ClassVar[int] = 1000

    def __init__(
        self,
        num_envs: int | None = None,
        *,
        xml_file: str | None = None,
        frame_skip: int | None = None,
        reset_noise_scale: float | None = None,
        num_threads: int | None = None,
        device: torch.device | str | int | None = None,
        from_pixels: bool = False,
        render_size: tuple[int, int] = (240, 320),
        camera: int | str = -1,
    ) -> None:
        self._mujoco: Any = import_library(
            "mujoco", needed_by=type(self).__name__, extra="mujoco", at_least="3.3", below="4"
        )
        owner = type(self).__name__
        count = 1 if num_envs is None else as_integer(num_envs, owner, "num_envs", 1)
        super().__init__(batch_size=() if num_envs is None else (count,), device=device)
        self.model: Any = self._mujoco.MjModel.from_xml_path(_path(xml_file or self.xml_file, owner))
        self.data = [self._mujoco.MjData(self.model) for _ in range(count)]
        if frame_skip is not None:
            self.frame_skip = as_integer(frame_skip, owner, "frame_skip", 1)
        if reset_noise_scale is not None:
            self.reset_noise_scale = reset_noise_scale
        self.dt = self.model.opt.timestep * self.frame_skip
        self._first = self.data[0].qpos.copy(), self.data[0].qvel.copy()
        self._generators = [np.random.default_rng() for _ in self.data]
        threads = min(count, num_threads or torch.get_num_threads())
        self._shares = [range(count * i // threads, count * (i + 1) // threads) for i in range(threads)]
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None
        self._renderer: Any = None
        self._camera, self._pixels = camera, from_pixels
        self._restart(range(count))
        if from_pixels:
            self._renderer = self._mujoco.Renderer(self.model, *render_size)
        low, high = self.model.actuator_ctrlrange.astype(np.float32).T
        seen = Composite(observation=Unbounded(self._observe().shape[1], dtype=torch.float64))
        if from_pixels:
            seen["pixels"] = Bounded(0, 255, shape=(*render_size, 3), dtype=torch.uint8)
        self.observation_spec = seen
        self.action_spec = Bounded(torch.from_numpy(low.copy()), torch.from_numpy(high.copy()), shape=low.shape)
        self.done_spec = Composite({name: flag_spec(torch.Size([1]), None) for name in ("done", "terminated")})

    # ---- the task

    @property
    def from_pixels(self) -> bool:
        """Whether a rendered frame is written under ``pixels``."""
        return self._pixels

    def _observe(self) -> Array:
        """Observations ``[n, d]``."""
        raise RLError(f"{type(self).__name__} does not implement _observe()")

    def _judge(self, before: Array, after: Array, action: Array) -> tuple[Array, Array]:
        """Rewards ``[n]`` and whether the episodes have terminated ``[n]``, for actions float32 ``[n, a]``."""
        del before, after, action
        raise RLError(f"{type(self).__name__} does not implement _judge(before, after, action)")

    def _places(self) -> Array:
        """Return the values that `_judge` compares before and after a step, ``[n, k]``."""
        return self.field("qpos")[:, :1]

    def _start(self, generator: np.random.Generator) -> tuple[Array, Array]:
        """First ``qpos`` and ``qvel`` of an episode."""
        qpos, qvel = self._first
        scale = self.reset_noise_scale
        return (
            qpos + generator.uniform(-scale, scale, size=qpos.shape),
            qvel + generator.uniform(-scale, scale, size=qvel.shape),
        )

    def field(self, name: str) -> Array:
        """Return an array of ``MjData`` of all simulations, ``[n, ...]``, copied."""
        return np.stack([getattr(data, name) for data in self.data])

    # ---- stepping

    def _reset_leaves(self, mask: Tensor | None) -> Leaves:
        chosen = range(len(self.data)) if mask is None else mask.flatten().nonzero().flatten().tolist()
        self._restart(chosen)
        over = np.zeros(len(self.data), np.bool_)
        return {**self._seen(), **self._flags(over)}

    def _step_leaves(self, root: Leaves) -> Leaves:
        action = root["action"].reshape(len(self.data), -1).numpy(force=True)
        held = root.get("_step", None)
        chosen = None if held is None else held.flatten().tolist()
        before = self._before

        def advance(share: Sequence[int]) -> None:
            for index in share:
                if chosen is None or chosen[index]:
                    data = self.data[index]
                    data.ctrl[:] = action[index]
                    self._mujoco.mj_step(self.model, data, nstep=self.frame_skip)
                    self._mujoco.mj_rnePostConstraint(self.model, data)  # fills cfrc_ext

        if self._pool is None:
            advance(self._shares[0])
        else:
            list(self._pool.map(advance, self._shares))
        self._before = after = self._places()
        reward, terminated = self._judge(before, after, action)
        leaves = self._seen()
        leaves["reward"] = self._tensor(reward.astype(np.float32).reshape(-1, 1))
        return {**leaves, **self._flags(terminated)}

    def _restart(self, chosen: Sequence[int]) -> None:
        for index in chosen:
            data = self.data[index]
            self._mujoco.mj_resetData(self.model, data)
            data.qpos[:], data.qvel[:] = self._start(self._generators[index])
            self._mujoco.mj_forward(self.model, data)
        self._before = self._places()

    def _seen(self) -> Leaves:
        leaves: Leaves = {"observation": self._tensor(self._observe())}
        if self._pixels:
            frames = np.stack([self._frame(data) for data in self.data])
            leaves["pixels"] = self._tensor(frames)
        return leaves

    def _frame(self, data: Any) -> Array:
        self._renderer.update_scene(data, camera=self._camera)
        return self._renderer.render()

    def _flags(self, over: Array) -> Leaves:
        flag = over.reshape(-1, 1)
        return {"done": self._tensor(flag), "terminated": self._tensor(flag.copy())}

    def _tensor(self, rows: Array) -> Tensor:
        tensor = torch.from_numpy(rows if self.batch_size else rows[0])
        return tensor if self.device is None else tensor.to(self.device)

    # ---- control

    def _set_seed(self, seed: int) -> None:
        if seed < 0:
            raise ArgumentError(f"{type(self).__name__}.set_seed takes seeds from 0 on, got {seed}")
        streams = [np.random.SeedSequence(seed + index) for index in range(len(self.data))]
        self._generators = [np.random.Generator(np.random.PCG64(stream)) for stream in streams]

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the simulations and their generators."""
        kind = self._mujoco.mjtState.mjSTATE_INTEGRATION
        size = self._mujoco.mj_stateSize(self.model, kind)
        states = np.zeros((len(self.data), size))
        for row, data in zip(states, self.data, strict=True):
            self._mujoco.mj_getState(self.model, data, row, kind)
        generators = [dict(one.bit_generator.state) for one in self._generators]
        return {
            "restorable": True,
            "states": torch.from_numpy(states),
            "places": torch.from_numpy(self._before.copy()),
            "generators": generators,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Continue from `state`."""
        kind = self._mujoco.mjtState.mjSTATE_INTEGRATION
        for row, data, one, saved in zip(
            state["states"].cpu().numpy(), self.data, self._generators, state["generators"], strict=True
        ):
            self._mujoco.mj_setState(self.model, data, row, kind)
            one.bit_generator.state = saved
        self._before = state["places"].cpu().numpy().copy()
        return True

    def compile(self, **kwargs: Any) -> Any:
        """Raise an error: a simulator is not written in torch."""
        return EnvBase.compile(self, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(f"{self!r} cannot be copied or pickled: send a function that creates it")

    def _close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        if self._renderer is not None:
            self._renderer.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_size={self.batch_size}, threads={len(self._shares)}, device={self.device})"


def _path(xml_file: str, owner: str) -> str:
    path = Path(xml_file).expanduser()
    if not path.is_file():
        library = find_spec("gymnasium")
        if library is None or library.origin is None:
            raise MissingExtraError(
                f'{owner} uses a model of Gymnasium, which is not installed: pip install "rl-envs[mujoco]"'
            )
        path = Path(library.origin).parent / "envs" / "mujoco" / "assets" / xml_file
    if not path.is_file():
        raise ArgumentError(f"{owner}: there is no model {xml_file!r}, neither as a file nor among those of Gymnasium")
    return str(path)


class _Runner(MujocoEnv):
    """A task whose reward is the speed forwards, a bonus for being healthy, and costs.

    Args:
        num_envs: See `MujocoEnv`.
        forward_reward_weight: Weight of the speed along the x axis, in meters a second.
        ctrl_cost_weight: Weight of the sum of the squared actions.
        healthy_reward: Reward of each step in which the robot is healthy.
        terminate_when_unhealthy: Whether to end the episode when the robot is not healthy.
        settings: Further arguments of `MujocoEnv`.
    """

    forward_reward_weight = 1.0
    ctrl_cost_weight = 0.1
    healthy_reward = 0.0
    terminate_when_unhealthy = True

    def __init__(
        self,
        num_envs: int | None = None,
        *,
        forward_reward_weight: float | None = None,
        ctrl_cost_weight: float | None = None,
        healthy_reward: float | None = None,
        terminate_when_unhealthy: bool | None = None,
        **settings: Any,
    ) -> None:
        given = {
            "forward_reward_weight": forward_reward_weight,
            "ctrl_cost_weight": ctrl_cost_weight,
            "healthy_reward": healthy_reward,
            "terminate_when_unhealthy": terminate_when_unhealthy,
        }
        for name, value in given.items():
            if value is not None:
                setattr(self, name, value)
        super().__init__(num_envs, **settings)

    def _judge(self, before: Array, after: Array, action: Array) -> tuple[Array, Array]:
        speed = (after[:, 0] - before[:, 0]) / self.dt
        healthy = self._healthy()
        reward = self.forward_reward_weight * speed + self.healthy_reward * healthy
        reward = reward - (self.ctrl_cost_weight * np.square(action).sum(1) + self._contact_cost())
        return reward, ~healthy & self.terminate_when_unhealthy

    def _healthy(self) -> Array:
        """Whether each robot is healthy, bool ``[n]``."""
        return np.ones(len(self.data), np.bool_)

    def _contact_cost(self) -> Any:
        return 0.0

    def _observe(self) -> Array:
        return np.concatenate([self.field("qpos")[:, 1:], self.field("qvel")], axis=1)


class HalfCheetahEnv(_Runner):
    """Run with a planar two-legged robot, ``HalfCheetah-v5`` of Gymnasium: 17 observations, 6 joints, never terminated.

    Args:
        num_envs: Number of simulations; no batch if None.
        settings: Arguments ``forward_reward_weight`` (1.0), ``ctrl_cost_weight`` (0.1), and arguments of `MujocoEnv`.

    Example:
        >>> HalfCheetahEnv(num_envs=4).rollout(3)["observation"].shape
        torch.Size([4, 3, 17])
    """

    xml_file, frame_skip, reset_noise_scale = "half_cheetah.xml", 5, 0.1

    def _start(self, generator: np.random.Generator) -> tuple[Array, Array]:
        return _normal_start(self._first, self.reset_noise_scale, generator)


class HopperEnv(_Runner):
    """Hop on one leg, ``Hopper-v5`` of Gymnasium: 11 observations, 3 joints; terminated when it falls.

    Args:
        num_envs: Number of simulations; no batch if None.
        settings: Arguments ``forward_reward_weight`` (1.0), ``ctrl_cost_weight`` (0.001), ``healthy_reward`` (1.0),
            ``terminate_when_unhealthy`` (True), and arguments of `MujocoEnv`.

    Example:
        >>> HopperEnv().action_spec.shape
        torch.Size([3])
    """

    xml_file, frame_skip, reset_noise_scale = "hopper.xml", 4, 5e-3
    ctrl_cost_weight, healthy_reward = 1e-3, 1.0

    def _healthy(self) -> Array:
        qpos = self.field("qpos")
        state = np.concatenate([qpos[:, 2:], self.field("qvel")], axis=1)
        return (np.abs(state) < 100).all(1) & (qpos[:, 1] > 0.7) & (np.abs(qpos[:, 2]) < 0.2)

    def _observe(self) -> Array:
        return np.concatenate([self.field("qpos")[:, 1:], np.clip(self.field("qvel"), -10, 10)], axis=1)


class Walker2dEnv(_Runner):
    """Walk with a planar robot, ``Walker2d-v5`` of Gymnasium: 17 observations, 6 joints; terminated when it falls.

    Args:
        num_envs: Number of simulations; no batch if None.
        settings: Arguments as for `HopperEnv`.

    Example:
        >>> Walker2dEnv(num_envs=2).rollout(2)["next", "reward"].shape
        torch.Size([2, 2, 1])
    """

    xml_file, frame_skip, reset_noise_scale = "walker2d_v5.xml", 4, 5e-3
    ctrl_cost_weight, healthy_reward = 1e-3, 1.0

    def _healthy(self) -> Array:
        height, angle = self.field("qpos")[:, 1:3].T
        return (height > 0.8) & (height < 2.0) & (np.abs(angle) < 1.0)

    def _observe(self) -> Array:
        return np.concatenate([self.field("qpos")[:, 1:], np.clip(self.field("qvel"), -10, 10)], axis=1)


class AntEnv(_Runner):
    """Run with a four-legged robot, ``Ant-v5`` of Gymnasium: 105 observations with contact forces, 8 joints.

    Args:
        num_envs: Number of simulations; no batch if None.
        contact_cost_weight: Weight of the sum of the squared contact forces.
        settings: Arguments ``forward_reward_weight`` (1.0), ``ctrl_cost_weight`` (0.5), ``healthy_reward`` (1.0),
            ``terminate_when_unhealthy`` (True), and arguments of `MujocoEnv`.

    Example:
        >>> AntEnv(num_envs=2).rollout(2)["observation"].shape
        torch.Size([2, 2, 105])
    """

    xml_file, frame_skip, reset_noise_scale = "ant.xml", 5, 0.1
    ctrl_cost_weight, healthy_reward = 0.5, 1.0

    def __init__(self, num_envs: int | None = None, *, contact_cost_weight: float = 5e-4, **settings: Any) -> None:
        self.contact_cost_weight = contact_cost_weight
        super().__init__(num_envs, **settings)

    def _places(self) -> Array:
        return self.field("xpos")[:, 1, :2]

    def _forces(self) -> Array:
        return np.clip(self.field("cfrc_ext"), -1.0, 1.0)

    def _contact_cost(self) -> Any:
        return self.contact_cost_weight * np.square(self._forces()).sum((1, 2))

    def _healthy(self) -> Array:
        qpos, qvel = self.field("qpos"), self.field("qvel")
        finite = np.isfinite(qpos).all(1) & np.isfinite(qvel).all(1)
        return finite & (qpos[:, 2] >= 0.2) & (qpos[:, 2] <= 1.0)

    def _observe(self) -> Array:
        forces = self._forces()[:, 1:].reshape(len(self.data), -1)
        return np.concatenate([self.field("qpos")[:, 2:], self.field("qvel"), forces], axis=1)

    def _start(self, generator: np.random.Generator) -> tuple[Array, Array]:
        return _normal_start(self._first, self.reset_noise_scale, generator)


class HumanoidEnv(_Runner):
    """Run with a humanoid, ``Humanoid-v5`` of Gymnasium: 348 observations with inertia and forces, 17 joints.

    Args:
        num_envs: Number of simulations; no batch if None.
        contact_cost_weight: Weight of the sum of the squared contact forces; the cost is at most 10.
        settings: Arguments ``forward_reward_weight`` (1.25), ``ctrl_cost_weight`` (0.1), ``healthy_reward`` (5.0),
            ``terminate_when_unhealthy`` (True), and arguments of `MujocoEnv`.

    Example:
        >>> HumanoidEnv().rollout(2)["observation"].shape
        torch.Size([2, 348])
    """

    xml_file, frame_skip, reset_noise_scale = "humanoid.xml", 5, 1e-2
    forward_reward_weight, healthy_reward = 1.25, 5.0

    def __init__(self, num_envs: int | None = None, *, contact_cost_weight: float = 5e-7, **settings: Any) -> None:
        self.contact_cost_weight = contact_cost_weight
        super().__init__(num_envs, **settings)

    def _places(self) -> Array:
        mass = self.model.body_mass.reshape(1, -1, 1)
        return ((mass * self.field("xipos")).sum(1) / mass.sum())[:, :2]

    def _judge(self, before: Array, after: Array, action: Array) -> tuple[Array, Array]:
        return super()._judge(before, after, action.astype(np.float64))  # Gymnasium's cost is that of MjData.ctrl

    def _contact_cost(self) -> Any:
        return np.minimum(self.contact_cost_weight * np.square(self.field("cfrc_ext")).sum((1, 2)), 10.0)

    def _healthy(self) -> Array:
        height = self.field("qpos")[:, 2]
        return (height > 1.0) & (height < 2.0)

    def _observe(self) -> Array:
        count = len(self.data)
        parts = [self.field("qpos")[:, 2:], self.field("qvel")]
        parts += [self.field(name)[:, 1:].reshape(count, -1) for name in ("cinert", "cvel")]
        parts += [self.field("qfrc_actuator")[:, 6:], self.field("cfrc_ext")[:, 1:].reshape(count, -1)]
        return np.concatenate(parts, axis=1)


def _normal_start(first: tuple[Array, Array], scale: float, generator: np.random.Generator) -> tuple[Array, Array]:
    """Uniform noise of positions and normal noise of velocities."""
    qpos, qvel = first
    return (
        qpos + generator.uniform(-scale, scale, size=qpos.shape),
        qvel + scale * generator.standard_normal(qvel.shape),
    )
