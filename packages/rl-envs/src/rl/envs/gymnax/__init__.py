"""Environments of gymnax."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.envs.gymnax._wrapper import GymnaxEnv, GymnaxWrapper

__all__ = ["GymnaxEnv", "GymnaxWrapper"]

__getattr__, __dir__ = lazy_exports(__name__)
