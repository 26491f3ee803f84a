"""Samplers: which rows make a batch."""

from rl.replay._prioritized import PrioritizedSampler
from rl.replay._random import RandomSampler
from rl.replay._slice_passes import SliceSamplerWithoutReplacement
from rl.replay._slices import SliceSampler
from rl.replay._without_replacement import SamplerWithoutReplacement

__all__ = [
    "PrioritizedSampler",
    "RandomSampler",
    "SamplerWithoutReplacement",
    "SliceSampler",
    "SliceSamplerWithoutReplacement",
]
