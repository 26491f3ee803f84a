"""Transforms of devices and dtypes."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.envs.transforms.device._device_cast_transform import DeviceCastTransform
    from rl.envs.transforms.device._double_to_float import DoubleToFloat
    from rl.envs.transforms.device._dtype_cast_transform import DTypeCastTransform
    from rl.envs.transforms.device._pin_memory_transform import PinMemoryTransform

__all__ = [
    "DTypeCastTransform",
    "DeviceCastTransform",
    "DoubleToFloat",
    "PinMemoryTransform",
]

__getattr__, __dir__ = lazy_exports(__name__)
