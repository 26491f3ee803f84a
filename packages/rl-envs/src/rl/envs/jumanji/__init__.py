"""Environments of Jumanji."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.envs.jumanji._wrapper import JumanjiEnv, JumanjiWrapper

__all__ = ["JumanjiEnv", "JumanjiWrapper"]

__getattr__, __dir__ = lazy_exports(__name__)
