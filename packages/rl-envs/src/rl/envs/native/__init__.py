"""Environments written in torch, batched."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.envs.native._arcade import BreakoutEnv, DoorKeyEnv, Game2048Env, SnakeEnv
    from rl.envs.native._classic_control import AcrobotEnv, CartPoleEnv, MountainCarEnv, PendulumEnv
    from rl.envs.native._games import BanditEnv, GridWorldEnv, PixelGridWorldEnv, TicTacToeEnv

__all__ = [
    "AcrobotEnv",
    "BanditEnv",
    "BreakoutEnv",
    "CartPoleEnv",
    "DoorKeyEnv",
    "Game2048Env",
    "GridWorldEnv",
    "MountainCarEnv",
    "PendulumEnv",
    "PixelGridWorldEnv",
    "SnakeEnv",
    "TicTacToeEnv",
]

__getattr__, __dir__ = lazy_exports(__name__)
