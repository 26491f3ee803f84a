"""Weights of policies: how they reach the workers of a collector."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.collectors.weights._shared import SharedWeights
    from rl.collectors.weights._updaters import (
        MultiProcessedWeightUpdater,
        RayWeightUpdater,
        VanillaWeightUpdater,
        WeightUpdaterBase,
    )

__all__ = [
    "MultiProcessedWeightUpdater",
    "RayWeightUpdater",
    "SharedWeights",
    "VanillaWeightUpdater",
    "WeightUpdaterBase",
]

__getattr__, __dir__ = lazy_exports(__name__)
