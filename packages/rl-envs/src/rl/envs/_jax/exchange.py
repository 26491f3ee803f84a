"""Tensors of torch as arrays of JAX, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["to_jax", "to_torch"]

_SMALL = 1 << 18
"""Bytes up to which an array on the CPU is copied: that costs 5 microseconds, the exchange through DLPack 40 to 100."""


def to_jax(jax: Any, tensor: Tensor) -> Any:
    """An argument for a compiled function; large tensors share their memory through DLPack."""
    tensor = tensor.detach()
    if tensor.device.type == "cpu" and tensor.nbytes <= _SMALL:
        return tensor.numpy()
    return jax.numpy.from_dlpack(tensor.contiguous())


def to_torch(array: Any) -> Tensor:
    """A result of a compiled function; large arrays share their memory through DLPack."""
    if array.nbytes <= _SMALL and array.device.platform == "cpu":
        return torch.from_numpy(np.array(array))
    return torch.from_dlpack(array)
