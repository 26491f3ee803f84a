"""Environments of MO-Gymnasium, with several objectives."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.envs.mo_gymnasium._wrapper import MOGymEnv, MOGymWrapper

__all__ = ["MOGymEnv", "MOGymWrapper"]

__getattr__, __dir__ = lazy_exports(__name__)
