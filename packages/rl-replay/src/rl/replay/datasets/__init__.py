"""Data sets as replay buffers."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.replay.datasets._base import DatasetBuffer
    from rl.replay.datasets._load import load_dataset, register_dataset
    from rl.replay.datasets._minari import MinariExperienceReplay

__all__ = ["DatasetBuffer", "MinariExperienceReplay", "load_dataset", "register_dataset"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "rl.replay.datasets._base": ["DatasetBuffer"],
        "rl.replay.datasets._load": ["load_dataset", "register_dataset"],
        "rl.replay.datasets._minari": ["MinariExperienceReplay"],
    },
)
