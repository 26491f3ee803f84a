"""Replay buffers: storages, samplers and writers on TensorDict."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.replay.__about__ import __version__
    from rl.replay._query import (
        Trajectory,
        TrajectoryPredicate,
        filter_trajectories,
        find_start_stop_traj,
        iter_trajectories,
        traj,
    )
    from rl.replay._slices.check import check_slices
    from rl.replay.buffers._base import ReplayBuffer
    from rl.replay.buffers._conditional import ConditionalUpdateResult
    from rl.replay.buffers._ensemble import ReplayBufferEnsemble
    from rl.replay.buffers._hindsight import HERReplayBuffer, HindsightStrategy
    from rl.replay.buffers._prioritized import PrioritizedReplayBuffer, TensorDictPrioritizedReplayBuffer
    from rl.replay.buffers._ray import RayReplayBuffer, RemoteTensorDictReplayBuffer
    from rl.replay.buffers._tensordict import TensorDictReplayBuffer
    from rl.replay.datasets._offline_to_online import OfflineToOnlineReplayBuffer, prefill_replay_buffer
    from rl.replay.postprocs._multi_step import MultiStep
    from rl.replay.sample_units._base import SampleUnit
    from rl.replay.sample_units._sequence import Sequence
    from rl.replay.sample_units._transition import Transition
    from rl.replay.samplers._consuming import ConsumingSampler
    from rl.replay.samplers._ensemble import SamplerEnsemble
    from rl.replay.samplers._prioritized import PrioritizedSampler
    from rl.replay.samplers._prioritized_slices import PrioritizedSliceSampler
    from rl.replay.samplers._random import RandomSampler
    from rl.replay.samplers._slices import SliceSampler
    from rl.replay.samplers._slices_without_replacement import SliceSamplerWithoutReplacement
    from rl.replay.samplers._staleness_aware import StalenessAwareSampler
    from rl.replay.samplers._without_replacement import SamplerWithoutReplacement
    from rl.replay.schedules._linear import LinearScheduler
    from rl.replay.schedules._step import StepScheduler
    from rl.replay.storages._compressed_list import CompressedListStorage
    from rl.replay.storages._ensemble import StorageEnsemble
    from rl.replay.storages._lazy_stack import LazyStackStorage
    from rl.replay.storages._list import ListStorage
    from rl.replay.storages._memmap import LazyMemmapStorage
    from rl.replay.storages._tensor import LazyTensorStorage, TensorStorage
    from rl.replay.transforms._burn_in import BurnInTransform
    from rl.replay.transforms._multi_step import MultiStepTransform
    from rl.replay.transforms._policy_age_filter import PolicyAgeFilter
    from rl.replay.transforms._random_crop import RandomCropTensorDict
    from rl.replay.transforms._reward_to_go import Reward2GoTransform
    from rl.replay.writers._ensemble import WriterEnsemble
    from rl.replay.writers._immutable import ImmutableDatasetWriter
    from rl.replay.writers._max_value import TensorDictMaxValueWriter
    from rl.replay.writers._round_robin import RoundRobinWriter, TensorDictRoundRobinWriter

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
