"""Reinforcement-learning environments and transforms on TensorDict."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.core.mdp import step_mdp
    from rl.envs.__about__ import __version__
    from rl.envs._adapter import EnvAdapter, as_env
    from rl.envs._base import EnvBase
    from rl.envs._compose import Compose
    from rl.envs._conformance import check_env_specs
    from rl.envs._gym import GymEnv, GymWrapper
    from rl.envs._gym_spaces import register_gym_spec_conversion
    from rl.envs._init_tracker import InitTracker
    from rl.envs._pendulum import PendulumEnv
    from rl.envs._primer import TensorDictPrimer
    from rl.envs._random_policy import RandomPolicy
    from rl.envs._reward_sum import RewardSum
    from rl.envs._serial import SerialEnv
    from rl.envs._step_counter import StepCounter
    from rl.envs._transform import Transform
    from rl.envs._transformed import TransformedEnv

__all__ = [
    "Compose",
    "EnvAdapter",
    "EnvBase",
    "GymEnv",
    "GymWrapper",
    "InitTracker",
    "PendulumEnv",
    "RandomPolicy",
    "RewardSum",
    "SerialEnv",
    "StepCounter",
    "TensorDictPrimer",
    "Transform",
    "TransformedEnv",
    "__version__",
    "as_env",
    "check_env_specs",
    "register_gym_spec_conversion",
    "step_mdp",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "rl.core.mdp": ["step_mdp"],
        "rl.envs.__about__": ["__version__"],
        "rl.envs._adapter": ["EnvAdapter", "as_env"],
        "rl.envs._base": ["EnvBase"],
        "rl.envs._compose": ["Compose"],
        "rl.envs._conformance": ["check_env_specs"],
        "rl.envs._gym": ["GymEnv", "GymWrapper"],
        "rl.envs._gym_spaces": ["register_gym_spec_conversion"],
        "rl.envs._init_tracker": ["InitTracker"],
        "rl.envs._pendulum": ["PendulumEnv"],
        "rl.envs._primer": ["TensorDictPrimer"],
        "rl.envs._random_policy": ["RandomPolicy"],
        "rl.envs._reward_sum": ["RewardSum"],
        "rl.envs._serial": ["SerialEnv"],
        "rl.envs._step_counter": ["StepCounter"],
        "rl.envs._transform": ["Transform"],
        "rl.envs._transformed": ["TransformedEnv"],
    },
)
