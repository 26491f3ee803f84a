"""Base classes of environments, their specs, flags, checks and rollouts."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.envs.base._base import EnvBase
    from rl.envs.base._check_env import check_env
    from rl.envs.base._checks import check_env_specs
    from rl.envs.base._leaf import EnvAdapter, LeafCalls, LeafEnvBase, as_env
    from rl.envs.base._rollout import RandomPolicy

__all__ = [
    "EnvAdapter",
    "EnvBase",
    "LeafCalls",
    "LeafEnvBase",
    "RandomPolicy",
    "as_env",
    "check_env",
    "check_env_specs",
]

__getattr__, __dir__ = lazy_exports(__name__)
