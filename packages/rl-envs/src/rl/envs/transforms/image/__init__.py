"""Transforms of images."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.envs.transforms.image._center_crop import CenterCrop
    from rl.envs.transforms.image._crop import Crop
    from rl.envs.transforms.image._gray_scale import GrayScale
    from rl.envs.transforms.image._resize import Resize
    from rl.envs.transforms.image._to_tensor_image import ToTensorImage

__all__ = [
    "CenterCrop",
    "Crop",
    "GrayScale",
    "Resize",
    "ToTensorImage",
]

__getattr__, __dir__ = lazy_exports(__name__)
