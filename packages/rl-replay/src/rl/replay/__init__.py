"""Replay buffers: storages, samplers and writers on TensorDict."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.replay.__about__ import __version__
    from rl.replay._buffer import ReplayBuffer
    from rl.replay._burn_in import BurnInTransform
    from rl.replay._immutable import ImmutableDatasetWriter
    from rl.replay._list import ListStorage
    from rl.replay._memmap import LazyMemmapStorage
    from rl.replay._prioritized import PrioritizedSampler
    from rl.replay._prioritized_buffer import PrioritizedReplayBuffer, TensorDictPrioritizedReplayBuffer
    from rl.replay._random import RandomSampler
    from rl.replay._round_robin import RoundRobinWriter, TensorDictRoundRobinWriter
    from rl.replay._scheduler import LinearScheduler
    from rl.replay._slice_passes import SliceSamplerWithoutReplacement
    from rl.replay._slices import SliceSampler
    from rl.replay._tensor_storages import LazyTensorStorage, TensorStorage
    from rl.replay._tensordict_buffer import TensorDictReplayBuffer
    from rl.replay._without_replacement import SamplerWithoutReplacement

__all__ = [
    "BurnInTransform",
    "ImmutableDatasetWriter",
    "LazyMemmapStorage",
    "LazyTensorStorage",
    "LinearScheduler",
    "ListStorage",
    "PrioritizedReplayBuffer",
    "PrioritizedSampler",
    "RandomSampler",
    "ReplayBuffer",
    "RoundRobinWriter",
    "SamplerWithoutReplacement",
    "SliceSampler",
    "SliceSamplerWithoutReplacement",
    "TensorDictPrioritizedReplayBuffer",
    "TensorDictReplayBuffer",
    "TensorDictRoundRobinWriter",
    "TensorStorage",
    "__version__",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "rl.replay.__about__": ["__version__"],
        "rl.replay._buffer": ["ReplayBuffer"],
        "rl.replay._burn_in": ["BurnInTransform"],
        "rl.replay._immutable": ["ImmutableDatasetWriter"],
        "rl.replay._list": ["ListStorage"],
        "rl.replay._memmap": ["LazyMemmapStorage"],
        "rl.replay._prioritized": ["PrioritizedSampler"],
        "rl.replay._prioritized_buffer": ["PrioritizedReplayBuffer", "TensorDictPrioritizedReplayBuffer"],
        "rl.replay._random": ["RandomSampler"],
        "rl.replay._round_robin": ["RoundRobinWriter", "TensorDictRoundRobinWriter"],
        "rl.replay._scheduler": ["LinearScheduler"],
        "rl.replay._slice_passes": ["SliceSamplerWithoutReplacement"],
        "rl.replay._slices": ["SliceSampler"],
        "rl.replay._tensor_storages": ["LazyTensorStorage", "TensorStorage"],
        "rl.replay._tensordict_buffer": ["TensorDictReplayBuffer"],
        "rl.replay._without_replacement": ["SamplerWithoutReplacement"],
    },
)
