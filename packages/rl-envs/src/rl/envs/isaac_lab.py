"""Environments of Isaac Lab."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from rl.core.arguments import as_integer, foreign_arguments
from rl.core.errors import ArgumentError, RLError, SpecError
from rl.core.interfaces import Leaves
from rl.core.keys import NestedKey, unwrap
from rl.core.specs import Bounded, Composite, OneHot, Unbounded
from rl.envs._libraries import check_id, import_library
from rl.envs.base._base import EnvBase
from rl.envs.base._leaf import LeafEnvBase
from rl.envs.base._specs import FLAGS, flag_spec

__all__ = ["IsaacLabEnv", "IsaacLabWrapper", "isaac_lab_env"]


_NEEDED = ("num_envs", "device", "single_action_space")


@foreign_arguments()
class IsaacLabWrapper(LeafEnvBase):
    """Wrapper of an Isaac Lab environment: a batch ``[num_envs]`` on the simulator's device, without copies to the CPU.

    It reads ``action`` and writes:

    - the simulator's groups of observations by their names, in general ``policy`` (and ``critic``), float32
      ``[B, ...]``; the terms of a group that is not concatenated are nested under it;
    - ``pixels`` (``[B, H, W, C]``), with `from_tiled_camera`;
    - ``reward`` (float32 ``[B, 1]``), ``done``, ``terminated``, ``truncated`` (bool ``[B, 1]``).

    Isaac Lab resets finished elements within the step. Their last observations are under ``next`` if the configuration
    has ``compute_final_obs=True`` (Isaac Lab 3). Otherwise they are lost, and ``next`` repeats the observations from
    before the step: a return that bootstraps at a time limit then uses the value of the last state but one. Pixels are
    repeated in both cases. The observations after the reset become the root of the next step.

    Args:
        env: A ``ManagerBasedRLEnv`` or ``DirectRLEnv``, or what ``gymnasium.make`` returns for one.
        categorical_action_encoding: Whether to use integers instead of one-hot vectors, for discrete actions.
        from_tiled_camera: Whether to write the image of a tiled camera.
        tiled_camera_name: Name of the sensor in the scene.
        tiled_camera_data_type: Kind of its images, such as ``"rgb"`` or ``"depth"``.
        pixels_key: Key of the image.

    Raises:
        ArgumentError: If `env` is no such environment, or there is no such camera.

    It is tested against the documented interface only, since Isaac Lab needs a GPU and Isaac Sim.
    """

    def __init__(
        self,
        env: Any,
        *,
        categorical_action_encoding: bool = False,
        from_tiled_camera: bool = False,
        tiled_camera_name: str = "tiled_camera",
        tiled_camera_data_type: str = "rgb",
        pixels_key: NestedKey = "pixels",
    ) -> None:
        inner = getattr(env, "unwrapped", env)
        if not all(hasattr(inner, name) for name in _NEEDED) or hasattr(inner, "possible_agents"):
            raise ArgumentError(
                f"{type(self).__name__} wraps a ManagerBasedRLEnv or DirectRLEnv of Isaac Lab, got {env!r:.100}: create"
                " it with gymnasium.make(task, cfg=...)"
            )
        super().__init__(batch_size=(inner.num_envs,), device=inner.device)
        self._env, self._inner, self._categorical = env, inner, categorical_action_encoding
        self._camera = (tiled_camera_name, tiled_camera_data_type) if from_tiled_camera else None
        self._pixels_key, self._seed = unwrap(pixels_key), None
        self._resets_some = "env_ids" in inspect.signature(inner.reset).parameters
        self._after: Leaves = self._observed(inner.reset()[0])  # what a reset of finished elements returns
        self._fresh = torch.ones((*self.batch_size, 1), dtype=torch.bool, device=self.device)  # elements at a start
        seen = Composite({})
        for key, value in self._after.items():
            shape = value.shape[1:]
            whole = value.dtype == torch.uint8
            seen[key] = (
                Bounded(0, 255, shape=shape, dtype=value.dtype) if whole else Unbounded(shape, dtype=value.dtype)
            )
        self.observation_spec, self.reward_spec = seen, Unbounded(1)
        self.action_spec = self._spec_of_actions()
        self.done_spec = Composite({name: flag_spec(torch.Size([1]), None) for name in FLAGS})

    def _spec_of_actions(self) -> Any:
        from rl.envs.gym._spaces import space_spec

        spec = space_spec(self._inner.single_action_space, "action", categorical=self._categorical)
        self._one_hot = isinstance(spec, OneHot)
        if isinstance(spec, Composite) or (not self._one_hot and type(spec).__name__ == "MultiOneHot"):
            raise SpecError(
                f"{type(self).__name__}: the action space {self._inner.single_action_space} is not supported: use a Box"
                " or Discrete space"
            )
        return spec

    def _observed(self, groups: Mapping[str, Any]) -> Leaves:
        """Return the observations of the simulator by key, and the image of the camera."""
        leaves: Leaves = {}
        for name, group in groups.items():
            for path, value in _flat(group, (name,)).items():
                leaves[unwrap(path)] = value
        if self._camera is not None:
            name, kind = self._camera
            try:
                leaves[self._pixels_key] = self._inner.scene.sensors[name].data.output[kind]
            except (AttributeError, KeyError) as error:
                raise ArgumentError(
                    f"{type(self).__name__}: the scene has no tiled camera {name!r} with images {kind!r}: add one to"
                    " the configuration, or pass tiled_camera_name= and tiled_camera_data_type="
                ) from error
        return leaves

    def _reset_leaves(self, mask: Tensor | None) -> Leaves:
        if mask is None:
            seed, self._seed = self._seed, None
            self._after = self._observed(self._inner.reset(**({} if seed is None else {"seed": seed}))[0])
            self._fresh = torch.ones_like(self._fresh)
        else:
            running = mask & ~self._fresh
            if bool(running.any()):
                self._reset_running(running)
        over = torch.zeros((*self.batch_size, 1), dtype=torch.bool, device=self.device)
        return {**{key: value.clone() for key, value in self._after.items()}, **{name: over.clone() for name in FLAGS}}

    def _reset_running(self, mask: Tensor) -> None:
        """Reset elements that the simulator has not reset by itself."""
        if self._resets_some:
            found, _ = self._inner.reset(env_ids=mask.flatten().nonzero().flatten())
        elif bool(mask.all()):
            found, _ = self._inner.reset()
        else:
            raise RLError(
                f"{type(self).__name__}: a DirectRLEnv resets running elements only all at once, and '_reset' marks"
                " some of them: mark those that are done, or all"
            )
        after = self._observed(found)
        self._after = {key: torch.where(_like(mask, new), new, self._after[key]) for key, new in after.items()}
        self._fresh = self._fresh | mask

    def _step_leaves(self, root: Leaves) -> Leaves:
        held = root.get("_step", None)
        if held is not None and not bool((held.flatten() | root["done"].flatten()).all()):
            raise RLError(
                f"{type(self).__name__} steps all elements at once, and '_step' excludes some whose episodes have not"
                " ended: leave it out"
            )
        action = root["action"]
        groups, reward, terminated, truncated, extras = self._inner.step(action.argmax(-1) if self._one_hot else action)
        terminated, truncated = (flag.bool().reshape(*self.batch_size, 1) for flag in (terminated, truncated))
        self._after, self._fresh = self._observed(groups), terminated | truncated
        final = extras.get("final_obs")
        last = {} if final is None else {k: v for k, v in self._observed(final).items() if k != self._pixels_key}
        leaves: Leaves = {
            key: torch.where(_like(self._fresh, value), last.get(key, root[key]), value)
            for key, value in self._after.items()
        }
        leaves["reward"] = reward.reshape(*self.batch_size, 1).clone()
        leaves["done"], leaves["terminated"], leaves["truncated"] = self._fresh.clone(), terminated, truncated
        return leaves

    def _set_seed(self, seed: int) -> None:
        self._seed = as_integer(seed, f"{type(self).__name__}.set_seed", "seed", 0)

    def compile(self, **kwargs: Any) -> Any:
        """Raise an error: a simulator is not written in torch."""
        return EnvBase.compile(self, **kwargs)

    def render(self) -> Any:
        """Render the simulator."""
        return self._env.render()

    @property
    def isaac_env(self) -> Any:
        """The wrapped environment."""
        return self._env

    def _close(self) -> None:
        self._env.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(env={self._env}, batch_size={self.batch_size}, device={self.device})"


def _flat(value: Any, path: tuple[str, ...]) -> dict[tuple[str, ...], Tensor]:
    """Return the tensors of a group of observations, by path."""
    if isinstance(value, Tensor):
        return {path: value}
    return {key: leaf for name, part in value.items() for key, leaf in _flat(part, (*path, name)).items()}


def _like(mask: Tensor, value: Tensor) -> Tensor:
    """`mask` ``[B, 1]`` with as many dimensions as `value`."""
    return mask.reshape(-1, *[1] * (value.ndim - 1))


_GUIDE = "follow https://isaac-sim.github.io/IsaacLab to install it with Isaac Sim, and add rl-envs to its environment"


def _library(module: str) -> Any:
    return import_library(module, needed_by="IsaacLabEnv", remedy=_GUIDE)


class IsaacLabEnv(IsaacLabWrapper):
    """A task of Isaac Lab by its id; see `IsaacLabWrapper` for what it reads and writes.

    The first one in a process starts Isaac Sim, without a window. Isaac Lab simulates one environment in a process:
    `isaac_lab_env` creates further ones.

    Args:
        env_name: Id, such as ``"Isaac-Cartpole-v0"``.
        num_envs: Number of elements; that of the task if None.
        device: Device of the simulation, and of all tensors; ``cuda:0`` if None.
        launcher_kwargs: Arguments of ``isaaclab.app.AppLauncher``, such as ``{"livestream": 2}``.
        settings: Further arguments of `IsaacLabWrapper`.

    Raises:
        MissingExtraError: If Isaac Lab or Isaac Sim is not installed.
        UnknownComponentError: If there is no such task.
        RLError: If another `IsaacLabEnv` is open in this process.

    It is tested against the documented interface only, since Isaac Lab needs a GPU and Isaac Sim.
    """

    _app: ClassVar[Any] = None  # the launcher of this process; it closes Isaac Sim when it is collected
    _opened: ClassVar[bool] = False

    def __init__(
        self,
        env_name: str,
        *,
        num_envs: int | None = None,
        device: torch.device | str | int | None = None,
        launcher_kwargs: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        if IsaacLabEnv._opened:
            raise RLError(
                "Isaac Lab simulates one environment in a process, and one is open: close it first, or use"
                " isaac_lab_env(...), which creates the second one in a process of its own"
            )
        place = "cuda:0" if device is None else str(torch.device(device))
        if IsaacLabEnv._app is None:  # before all other modules of isaaclab
            cameras = bool(settings.get("from_tiled_camera"))
            options = {"headless": True, "enable_cameras": cameras, "device": place, **(launcher_kwargs or {})}
            IsaacLabEnv._app = _library("isaaclab.app").AppLauncher(**options)
        _library("isaaclab_tasks")  # registers the ids
        import gymnasium

        check_id("Isaac Lab", env_name, gymnasium.registry)
        config = _library("isaaclab_tasks.utils").parse_env_cfg(env_name, device=place, num_envs=num_envs)
        if hasattr(config, "compute_final_obs"):
            config.compute_final_obs = True
        super().__init__(gymnasium.make(env_name, cfg=config), **settings)
        IsaacLabEnv._opened, self.env_name = True, env_name

    def _close(self) -> None:
        super()._close()
        IsaacLabEnv._opened = False


def isaac_lab_env(
    env_name: str,
    *,
    num_envs: int | None = None,
    device: torch.device | str | int | None = None,
    categorical_action_encoding: bool = False,
    **settings: Any,
) -> EnvBase:
    """Create an `IsaacLabEnv`; if one is open in this process, in a process of its own.

    Args:
        env_name: Id, such as ``"Isaac-Cartpole-v0"``.
        num_envs: Number of elements; that of the task if None.
        device: Device of the simulation, and of all tensors; ``cuda:0`` if None.
        categorical_action_encoding: Whether to use integers instead of one-hot vectors, for discrete actions.
        settings: Further arguments of `IsaacLabEnv`.

    Raises:
        MissingExtraError: If Isaac Lab or Isaac Sim is not installed.
        UnknownComponentError: If there is no such task.
    """
    options = {"num_envs": num_envs, "device": device, "categorical_action_encoding": categorical_action_encoding}
    make = partial(IsaacLabEnv, env_name, **options, **settings)
    if not IsaacLabEnv._opened:  # noqa: SLF001
        return make()
    from rl.envs.batched._parallel import ParallelEnv

    return ParallelEnv(1, make, mp_start_method="spawn", daemon=False, device=device)[0]
