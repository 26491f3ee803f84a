"""Data sets as replay buffers."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.replay.datasets._atari import AtariDQNExperienceReplay
    from rl.replay.datasets._base import DatasetBuffer, load_dataset, register_dataset
    from rl.replay.datasets._d4rl import D4RLExperienceReplay, GenDGRLExperienceReplay
    from rl.replay.datasets._lerobot import LeRobotExperienceReplay
    from rl.replay.datasets._minari import MinariExperienceReplay
    from rl.replay.datasets._open_x import OpenXExperienceReplay

__all__ = [
    "AtariDQNExperienceReplay",
    "D4RLExperienceReplay",
    "DatasetBuffer",
    "GenDGRLExperienceReplay",
    "LeRobotExperienceReplay",
    "MinariExperienceReplay",
    "OpenXExperienceReplay",
    "load_dataset",
    "register_dataset",
]

__getattr__, __dir__ = lazy_exports(__name__)
