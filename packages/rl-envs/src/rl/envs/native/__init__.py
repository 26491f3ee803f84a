"""Environments written in torch, batched."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.envs.native._acrobot import AcrobotEnv
    from rl.envs.native._bandit import BanditEnv
    from rl.envs.native._cartpole import CartPoleEnv
    from rl.envs.native._grid_world import GridWorldEnv
    from rl.envs.native._mountain_car import MountainCarEnv
    from rl.envs.native._pendulum import PendulumEnv
    from rl.envs.native._tic_tac_toe import TicTacToeEnv

__all__ = [
    "AcrobotEnv",
    "BanditEnv",
    "CartPoleEnv",
    "GridWorldEnv",
    "MountainCarEnv",
    "PendulumEnv",
    "TicTacToeEnv",
]

__getattr__, __dir__ = lazy_exports(__name__)
