"""Transforms of samples, and of batches before they are written."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.replay.transforms._burn_in import BurnInTransform
    from rl.replay.transforms._multi_step import MultiStepTransform
    from rl.replay.transforms._policy_age_filter import PolicyAgeFilter
    from rl.replay.transforms._random_crop import RandomCropTensorDict
    from rl.replay.transforms._reward_to_go import Reward2GoTransform

__all__ = ["BurnInTransform", "MultiStepTransform", "PolicyAgeFilter", "RandomCropTensorDict", "Reward2GoTransform"]

__getattr__, __dir__ = lazy_exports(__name__)
