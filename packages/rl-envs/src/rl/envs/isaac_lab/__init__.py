"""Environments of Isaac Lab."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.envs.isaac_lab._env import IsaacLabEnv, isaac_lab_env
    from rl.envs.isaac_lab._wrapper import IsaacLabWrapper

__all__ = ["IsaacLabEnv", "IsaacLabWrapper", "isaac_lab_env"]

__getattr__, __dir__ = lazy_exports(__name__)
