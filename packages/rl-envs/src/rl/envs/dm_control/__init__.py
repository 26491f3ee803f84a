"""Environments of dm_control, and of other simulators with the interface of dm_env."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.envs.dm_control._wrapper import DMControlEnv, DMControlWrapper

__all__ = ["DMControlEnv", "DMControlWrapper"]

__getattr__, __dir__ = lazy_exports(__name__)
