"""Replay buffers: storages, samplers and writers on TensorDict."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.replay.__about__ import __version__
    from rl.replay._n_step import MultiStepTransform
    from rl.replay._query import (
        Trajectory,
        TrajectoryPredicate,
        filter_trajectories,
        find_start_stop_traj,
        iter_trajectories,
        traj,
    )
    from rl.replay._slice_sampling import check_slices
    from rl.replay.buffers._base import ReplayBuffer
    from rl.replay.buffers._ensemble import ReplayBufferEnsemble
    from rl.replay.buffers._hindsight import HERReplayBuffer, HindsightStrategy
    from rl.replay.buffers._pipeline import ConditionalUpdateResult
    from rl.replay.buffers._ray import RayReplayBuffer, RemoteTensorDictReplayBuffer
    from rl.replay.buffers._tensordict import (
        PrioritizedReplayBuffer,
        TensorDictPrioritizedReplayBuffer,
        TensorDictReplayBuffer,
    )
    from rl.replay.datasets._offline_to_online import OfflineToOnlineReplayBuffer, prefill_replay_buffer
    from rl.replay.forest import MCTSForest, Tree
    from rl.replay.postprocs import MultiStep
    from rl.replay.sample_units import SampleUnit, Sequence, Transition
    from rl.replay.samplers._base import SamplerBase
    from rl.replay.samplers._ensemble import SamplerEnsemble
    from rl.replay.samplers._prioritized import PrioritizedSampler
    from rl.replay.samplers._prioritized_slices import PrioritizedSliceSampler
    from rl.replay.samplers._slices import SliceSampler, SliceSamplerWithoutReplacement
    from rl.replay.samplers._staleness_aware import StalenessAwareSampler
    from rl.replay.samplers._uniform import ConsumingSampler, RandomSampler, SamplerWithoutReplacement
    from rl.replay.schedules import LinearScheduler, StepScheduler
    from rl.replay.storages._ensemble import StorageEnsemble
    from rl.replay.storages._list import CompressedListStorage, LazyStackStorage, ListStorage
    from rl.replay.storages._memmap import LazyMemmapStorage
    from rl.replay.storages._tensor import LazyTensorStorage, TensorStorage
    from rl.replay.transforms import BurnInTransform, PolicyAgeFilter, RandomCropTensorDict, Reward2GoTransform
    from rl.replay.writers import (
        ImmutableDatasetWriter,
        RoundRobinWriter,
        TensorDictMaxValueWriter,
        TensorDictRoundRobinWriter,
        WriterBase,
        WriterEnsemble,
    )

__all__ = [
    "BurnInTransform",
    "CompressedListStorage",
    "ConditionalUpdateResult",
    "ConsumingSampler",
    "HERReplayBuffer",
    "HindsightStrategy",
    "ImmutableDatasetWriter",
    "LazyMemmapStorage",
    "LazyStackStorage",
    "LazyTensorStorage",
    "LinearScheduler",
    "ListStorage",
    "MCTSForest",
    "MultiStep",
    "MultiStepTransform",
    "OfflineToOnlineReplayBuffer",
    "PolicyAgeFilter",
    "PrioritizedReplayBuffer",
    "PrioritizedSampler",
    "PrioritizedSliceSampler",
    "RandomCropTensorDict",
    "RandomSampler",
    "RayReplayBuffer",
    "RemoteTensorDictReplayBuffer",
    "ReplayBuffer",
    "ReplayBufferEnsemble",
    "Reward2GoTransform",
    "RoundRobinWriter",
    "SampleUnit",
    "SamplerBase",
    "SamplerEnsemble",
    "SamplerWithoutReplacement",
    "Sequence",
    "SliceSampler",
    "SliceSamplerWithoutReplacement",
    "StalenessAwareSampler",
    "StepScheduler",
    "StorageEnsemble",
    "TensorDictMaxValueWriter",
    "TensorDictPrioritizedReplayBuffer",
    "TensorDictReplayBuffer",
    "TensorDictRoundRobinWriter",
    "TensorStorage",
    "Trajectory",
    "TrajectoryPredicate",
    "Transition",
    "Tree",
    "WriterBase",
    "WriterEnsemble",
    "__version__",
    "check_slices",
    "filter_trajectories",
    "find_start_stop_traj",
    "iter_trajectories",
    "prefill_replay_buffer",
    "traj",
]

__getattr__, __dir__ = lazy_exports(__name__)
