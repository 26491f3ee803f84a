"""Environments of MuJoCo Playground."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.envs.mujoco_playground._wrapper import MujocoPlaygroundEnv, MujocoPlaygroundWrapper

__all__ = ["MujocoPlaygroundEnv", "MujocoPlaygroundWrapper"]

__getattr__, __dir__ = lazy_exports(__name__)
