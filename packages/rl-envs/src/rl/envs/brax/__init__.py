"""Environments of Brax."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.envs.brax._wrapper import BraxEnv, BraxWrapper

__all__ = ["BraxEnv", "BraxWrapper"]

__getattr__, __dir__ = lazy_exports(__name__)
