"""Environments of Safety-Gymnasium, with costs."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.envs.safety_gymnasium._wrapper import SafetyGymnasiumEnv, SafetyGymnasiumWrapper

__all__ = ["SafetyGymnasiumEnv", "SafetyGymnasiumWrapper"]

__getattr__, __dir__ = lazy_exports(__name__)
