"""Environments of Meta-World."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.envs.metaworld._wrapper import MetaWorldEnv, MetaWorldWrapper

__all__ = ["MetaWorldEnv", "MetaWorldWrapper"]

__getattr__, __dir__ = lazy_exports(__name__)
