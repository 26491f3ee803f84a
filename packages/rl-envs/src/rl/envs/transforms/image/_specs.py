"""Specs of images of another size."""

from __future__ import annotations

import torch
from torch import Tensor

from rl.core.specs import Bounded, TensorSpec, Unbounded

__all__ = ["resized_spec"]


def resized_spec(spec: TensorSpec, *size: int) -> TensorSpec:
    """The spec of images of `size`: with the lowest and the highest bound of each image.

    Args:
        spec: of images ``[..., H, W]``.
        size: of the last dimensions.
    """
    shape = torch.Size((*spec.shape[: -len(size)], *size))
    if not isinstance(spec, Bounded):
        return Unbounded(shape, dtype=spec.dtype, device=spec.device)
    dims = tuple(range(-len(size), 0))
    low: Tensor = spec.space.low.amin(dims, keepdim=True).expand(shape)
    high: Tensor = spec.space.high.amax(dims, keepdim=True).expand(shape)
    return Bounded(low, high, shape=shape, dtype=spec.dtype, device=spec.device)
