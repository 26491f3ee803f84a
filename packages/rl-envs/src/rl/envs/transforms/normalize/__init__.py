"""Transforms that normalize with statistics."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.envs.transforms.normalize._observation_norm import ObservationNorm
    from rl.envs.transforms.normalize._reward_norm import RewardNorm
    from rl.envs.transforms.normalize._vec_norm import VecNorm

__all__ = [
    "ObservationNorm",
    "RewardNorm",
    "VecNorm",
]

__getattr__, __dir__ = lazy_exports(__name__)
