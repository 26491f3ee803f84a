"""Environments of EnvPool."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.envs.envpool._wrapper import EnvPoolEnv, MultiThreadedEnv

__all__ = ["EnvPoolEnv", "MultiThreadedEnv"]

__getattr__, __dir__ = lazy_exports(__name__)
