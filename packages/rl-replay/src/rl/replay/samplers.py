"""Samplers: which rows make a batch."""

from rl.replay._prioritized import PrioritizedSampler
from rl.replay._random import RandomSampler
from rl.replay._without_replacement import SamplerWithoutReplacement

__all__ = ["PrioritizedSampler", "RandomSampler", "SamplerWithoutReplacement"]
