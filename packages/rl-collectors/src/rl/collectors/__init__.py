"""Collectors: batches of experience from an environment and a policy."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.collectors.__about__ import __version__
    from rl.collectors._collector import Collector
    from rl.collectors._deprecated import SyncDataCollector
    from rl.collectors._trajectories import split_trajectories

__all__ = ["Collector", "SyncDataCollector", "__version__", "split_trajectories"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "rl.collectors.__about__": ["__version__"],
        "rl.collectors._collector": ["Collector"],
        "rl.collectors._deprecated": ["SyncDataCollector"],
        "rl.collectors._trajectories": ["split_trajectories"],
    },
)
