"""Gymnasium environments."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.envs.gym._as_gymnasium import as_gymnasium, register_gym_env
    from rl.envs.gym._spaces import register_gym_spec_conversion
    from rl.envs.gym._wrapper import GymEnv, GymWrapper

__all__ = ["GymEnv", "GymWrapper", "as_gymnasium", "register_gym_env", "register_gym_spec_conversion"]

__getattr__, __dir__ = lazy_exports(__name__)
