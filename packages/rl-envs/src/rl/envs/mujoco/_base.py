"""`MujocoEnv`: base class of batched tasks on MuJoCo."""

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
from rl.core.errors import MissingExtraError, RLError, SpecError
from rl.core.interfaces import Leaves
from rl.core.specs import Bounded, Composite, Unbounded
from rl.envs._libraries import import_library
from rl.envs.base._base import EnvBase
from rl.envs.base._leaf import LeafEnvBase
from rl.envs.base._specs import flag_spec

__all__ = ["MujocoEnv"]

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
        num_envs: number of simulations; no batch if None.
        xml_file: model, a path or a name among those that Gymnasium has; that of the task if None.
        frame_skip: simulation steps in a step; that of the task if None.
        reset_noise_scale: noise of the first state; that of the task if None.
        num_threads: threads; as many as there are cores if None, at most `num_envs`.
        device: device of the tensors; the CPU if None.
        from_pixels: render after every step. Needs a renderer, such as ``MUJOCO_GL=egl``.
        render_size: height and width of ``pixels``.
        camera: number or name of the camera.

    Raises:
        MissingExtraError: if MuJoCo is not installed, or has another version; if Gymnasium's models are missing.
        SpecError: if there is no such model.

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
        """What `_judge` compares before and after a step, ``[n, k]``."""
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
        """An array of ``MjData`` of all simulations, ``[n, ...]``, copied."""
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
            raise SpecError(f"{type(self).__name__}.set_seed takes seeds from 0 on, got {seed}")
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
        """Refuse: a simulator is not written in torch."""
        return EnvBase.compile(self, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(f"{self!r} cannot be copied or pickled: send a function that makes it")

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
        raise SpecError(f"{owner}: there is no model {xml_file!r}, neither as a file nor among those of Gymnasium")
    return str(path)
