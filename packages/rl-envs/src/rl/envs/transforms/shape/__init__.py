"""Transforms of shapes."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.envs.transforms.shape._batch_size import BatchSizeTransform
    from rl.envs.transforms.shape._cat_tensors import CatTensors
    from rl.envs.transforms.shape._expand_as import ExpandAs
    from rl.envs.transforms.shape._flatten_observation import FlattenObservation
    from rl.envs.transforms.shape._permute_transform import PermuteTransform
    from rl.envs.transforms.shape._squeeze_transform import SqueezeTransform
    from rl.envs.transforms.shape._stack import Stack
    from rl.envs.transforms.shape._unsqueeze_transform import UnsqueezeTransform

__all__ = [
    "BatchSizeTransform",
    "CatTensors",
    "ExpandAs",
    "FlattenObservation",
    "PermuteTransform",
    "SqueezeTransform",
    "Stack",
    "UnsqueezeTransform",
]

__getattr__, __dir__ = lazy_exports(__name__)
