"""Batched tasks on MuJoCo."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.envs.mujoco._base import MujocoEnv
    from rl.envs.mujoco._tasks import AntEnv, HalfCheetahEnv, HopperEnv, HumanoidEnv, Walker2dEnv

__all__ = ["AntEnv", "HalfCheetahEnv", "HopperEnv", "HumanoidEnv", "MujocoEnv", "Walker2dEnv"]

__getattr__, __dir__ = lazy_exports(__name__)
