"""`IsaacLabEnv` and `isaac_lab_env`: tasks of Isaac Lab by their ids."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import torch

from rl.core.errors import RLError
from rl.envs._ids import check_id
from rl.envs._libraries import import_library
from rl.envs.base._base import EnvBase
from rl.envs.isaac_lab._wrapper import IsaacLabWrapper

__all__ = ["IsaacLabEnv", "isaac_lab_env"]

_GUIDE = "follow https://isaac-sim.github.io/IsaacLab to install it with Isaac Sim, and add rl-envs to its environment"


def _library(module: str) -> Any:
    return import_library(module, needed_by="IsaacLabEnv", remedy=_GUIDE)


class IsaacLabEnv(IsaacLabWrapper):
    """A task of Isaac Lab by its id; see `IsaacLabWrapper` for what it reads and writes.

    The first one in a process starts Isaac Sim, without a window. Isaac Lab simulates one environment in a process:
    `isaac_lab_env` makes further ones.

    Args:
        env_name: id, such as ``"Isaac-Cartpole-v0"``.
        num_envs: number of elements; that of the task if None.
        device: of the simulation, and of all tensors; ``cuda:0`` if None.
        launcher_kwargs: for ``isaaclab.app.AppLauncher``, such as ``{"livestream": 2}``.
        settings: further arguments of `IsaacLabWrapper`.

    Raises:
        MissingExtraError: if Isaac Lab or Isaac Sim is not installed.
        UnknownComponentError: if there is no such task.
        RLError: if another `IsaacLabEnv` is open in this process.

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
                " isaac_lab_env(...), which makes the second one in a process of its own"
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
    """Make an `IsaacLabEnv`; if one is open in this process, in a process of its own.

    Args:
        env_name: id, such as ``"Isaac-Cartpole-v0"``.
        num_envs: number of elements; that of the task if None.
        device: of the simulation, and of all tensors; ``cuda:0`` if None.
        categorical_action_encoding: integers instead of one-hot vectors, for discrete actions.
        settings: further arguments of `IsaacLabEnv`.

    Raises:
        MissingExtraError: if Isaac Lab or Isaac Sim is not installed.
        UnknownComponentError: if there is no such task.
    """
    options = {"num_envs": num_envs, "device": device, "categorical_action_encoding": categorical_action_encoding}
    make = partial(IsaacLabEnv, env_name, **options, **settings)
    if not IsaacLabEnv._opened:  # noqa: SLF001
        return make()
    from rl.envs.batched._parallel import ParallelEnv

    return ParallelEnv(1, make, mp_start_method="spawn", daemon=False, device=device)[0]
