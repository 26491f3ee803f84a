"""Collectors: batches of experience from environments and a policy."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.collectors.__about__ import __version__
    from rl.collectors._async_batched import AsyncBatchedCollector
    from rl.collectors._collector import Collector
    from rl.collectors._deprecated import MultiaSyncDataCollector, MultiSyncDataCollector, SyncDataCollector
    from rl.collectors._profiling import ProfileConfig
    from rl.collectors._trajectories import split_trajectories
    from rl.collectors.distributed import RayCollector
    from rl.collectors.evaluation import Evaluator
    from rl.collectors.inference import InferenceClient, InferenceServer
    from rl.collectors.multi import Interruptor, MultiAsyncCollector, MultiCollector, MultiSyncCollector
    from rl.collectors.weights import (
        MultiProcessedWeightUpdater,
        RayWeightUpdater,
        VanillaWeightUpdater,
        WeightUpdaterBase,
    )

__all__ = [
    "AsyncBatchedCollector",
    "Collector",
    "Evaluator",
    "InferenceClient",
    "InferenceServer",
    "Interruptor",
    "MultiAsyncCollector",
    "MultiCollector",
    "MultiProcessedWeightUpdater",
    "MultiSyncCollector",
    "MultiSyncDataCollector",
    "MultiaSyncDataCollector",
    "ProfileConfig",
    "RayCollector",
    "RayWeightUpdater",
    "SyncDataCollector",
    "VanillaWeightUpdater",
    "WeightUpdaterBase",
    "__version__",
    "split_trajectories",
]

__getattr__, __dir__ = lazy_exports(__name__)
