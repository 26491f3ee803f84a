"""Transforms of observations."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.envs.transforms.observation._cat_frames import CatFrames, cat_frames
    from rl.envs.transforms.observation._clip_transform import ClipTransform
    from rl.envs.transforms.observation._finite_tensordict_check import FiniteTensorDictCheck
    from rl.envs.transforms.observation._hash import Hash
    from rl.envs.transforms.observation._next_observation_delta import NextObservationDelta
    from rl.envs.transforms.observation._next_state_reconstructor import NextStateReconstructor
    from rl.envs.transforms.observation._observation_transform import ObservationTransform
    from rl.envs.transforms.observation._time_max_pool import TimeMaxPool
    from rl.envs.transforms.observation._unary_transform import UnaryTransform

__all__ = [
    "CatFrames",
    "ClipTransform",
    "FiniteTensorDictCheck",
    "Hash",
    "NextObservationDelta",
    "NextStateReconstructor",
    "ObservationTransform",
    "TimeMaxPool",
    "UnaryTransform",
    "cat_frames",
]

__getattr__, __dir__ = lazy_exports(__name__)
