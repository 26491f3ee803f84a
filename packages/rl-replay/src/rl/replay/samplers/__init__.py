"""Samplers: which rows make a batch."""

from rl.replay.samplers._prioritized import PrioritizedSampler
from rl.replay.samplers._random import RandomSampler
from rl.replay.samplers._slices import SliceSampler
from rl.replay.samplers._slices_without_replacement import SliceSamplerWithoutReplacement
from rl.replay.samplers._without_replacement import SamplerWithoutReplacement

__all__ = [
    "PrioritizedSampler",
    "RandomSampler",
    "SamplerWithoutReplacement",
    "SliceSampler",
    "SliceSamplerWithoutReplacement",
]
