"""Reinforcement-learning environments and transforms on TensorDict."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.core.mdp import step_mdp
    from rl.envs.__about__ import __version__
    from rl.envs.base._adapter import EnvAdapter, as_env
    from rl.envs.base._base import EnvBase
    from rl.envs.base._checks import check_env_specs
    from rl.envs.base._leaf import LeafCalls, LeafEnvBase
    from rl.envs.base._random_policy import RandomPolicy
    from rl.envs.batched._serial import SerialEnv
    from rl.envs.gym._spaces import register_gym_spec_conversion
    from rl.envs.gym._wrapper import GymEnv, GymWrapper
    from rl.envs.native._acrobot import AcrobotEnv
    from rl.envs.native._bandit import BanditEnv
    from rl.envs.native._cartpole import CartPoleEnv
    from rl.envs.native._grid_world import GridWorldEnv
    from rl.envs.native._mountain_car import MountainCarEnv
    from rl.envs.native._pendulum import PendulumEnv
    from rl.envs.native._tic_tac_toe import TicTacToeEnv
    from rl.envs.transforms._base import Transform
    from rl.envs.transforms._compose import Compose
    from rl.envs.transforms._transformed_env import TransformedEnv
    from rl.envs.transforms.episode._init_tracker import InitTracker
    from rl.envs.transforms.episode._step_counter import StepCounter
    from rl.envs.transforms.recurrent._primer import TensorDictPrimer
    from rl.envs.transforms.reward._reward_sum import RewardSum

__all__ = [
    "AcrobotEnv",
    "BanditEnv",
    "CartPoleEnv",
    "Compose",
    "EnvAdapter",
    "EnvBase",
    "GridWorldEnv",
    "GymEnv",
    "GymWrapper",
    "InitTracker",
    "LeafCalls",
    "LeafEnvBase",
    "MountainCarEnv",
    "PendulumEnv",
    "RandomPolicy",
    "RewardSum",
    "SerialEnv",
    "StepCounter",
    "TensorDictPrimer",
    "TicTacToeEnv",
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
        "rl.envs.base._adapter": ["EnvAdapter", "as_env"],
        "rl.envs.base._base": ["EnvBase"],
        "rl.envs.base._leaf": ["LeafCalls", "LeafEnvBase"],
        "rl.envs.transforms._compose": ["Compose"],
        "rl.envs.base._checks": ["check_env_specs"],
        "rl.envs.gym._wrapper": ["GymEnv", "GymWrapper"],
        "rl.envs.gym._spaces": ["register_gym_spec_conversion"],
        "rl.envs.transforms.episode._init_tracker": ["InitTracker"],
        "rl.envs.native._acrobot": ["AcrobotEnv"],
        "rl.envs.native._bandit": ["BanditEnv"],
        "rl.envs.native._cartpole": ["CartPoleEnv"],
        "rl.envs.native._grid_world": ["GridWorldEnv"],
        "rl.envs.native._mountain_car": ["MountainCarEnv"],
        "rl.envs.native._tic_tac_toe": ["TicTacToeEnv"],
        "rl.envs.native._pendulum": ["PendulumEnv"],
        "rl.envs.transforms.recurrent._primer": ["TensorDictPrimer"],
        "rl.envs.base._random_policy": ["RandomPolicy"],
        "rl.envs.transforms.reward._reward_sum": ["RewardSum"],
        "rl.envs.batched._serial": ["SerialEnv"],
        "rl.envs.transforms.episode._step_counter": ["StepCounter"],
        "rl.envs.transforms._base": ["Transform"],
        "rl.envs.transforms._transformed_env": ["TransformedEnv"],
    },
)
