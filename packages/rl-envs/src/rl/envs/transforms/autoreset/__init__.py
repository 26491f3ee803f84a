"""Adapters for environments that reset by themselves."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.envs.transforms.autoreset._auto_reset import AutoResetEnv, AutoResetTransform
    from rl.envs.transforms.autoreset._vec_gym import VecGymEnvTransform

__all__ = ["AutoResetEnv", "AutoResetTransform", "VecGymEnvTransform"]

__getattr__, __dir__ = lazy_exports(__name__)
