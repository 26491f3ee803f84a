"""Samplers: which rows make a batch."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.replay.samplers._base import SamplerBase
    from rl.replay.samplers._ensemble import SamplerEnsemble
    from rl.replay.samplers._prioritized import PrioritizedSampler
    from rl.replay.samplers._prioritized_slices import PrioritizedSliceSampler
    from rl.replay.samplers._slices import SliceSampler, SliceSamplerWithoutReplacement
    from rl.replay.samplers._staleness_aware import StalenessAwareSampler
    from rl.replay.samplers._uniform import ConsumingSampler, RandomSampler, SamplerWithoutReplacement

__all__ = [
    "ConsumingSampler",
    "PrioritizedSampler",
    "PrioritizedSliceSampler",
    "RandomSampler",
    "SamplerBase",
    "SamplerEnsemble",
    "SamplerWithoutReplacement",
    "SliceSampler",
    "SliceSamplerWithoutReplacement",
    "StalenessAwareSampler",
]

__getattr__, __dir__ = lazy_exports(__name__)
