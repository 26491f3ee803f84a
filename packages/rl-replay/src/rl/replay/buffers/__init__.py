"""Replay buffers."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.replay.buffers._base import ReplayBuffer
    from rl.replay.buffers._ensemble import ReplayBufferEnsemble
    from rl.replay.buffers._hindsight import HERReplayBuffer, HindsightStrategy
    from rl.replay.buffers._ray import RayReplayBuffer, RemoteTensorDictReplayBuffer
    from rl.replay.buffers._tensordict import (
        PrioritizedReplayBuffer,
        TensorDictPrioritizedReplayBuffer,
        TensorDictReplayBuffer,
    )

__all__ = [
    "HERReplayBuffer",
    "HindsightStrategy",
    "PrioritizedReplayBuffer",
    "RayReplayBuffer",
    "RemoteTensorDictReplayBuffer",
    "ReplayBuffer",
    "ReplayBufferEnsemble",
    "TensorDictPrioritizedReplayBuffer",
    "TensorDictReplayBuffer",
]

__getattr__, __dir__ = lazy_exports(__name__)
