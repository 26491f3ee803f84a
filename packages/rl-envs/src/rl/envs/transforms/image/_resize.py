"""`Resize`: images of another size."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from rl.core.errors import SpecError
from rl.core.keys import NestedKey
from rl.core.specs import TensorSpec
from rl.envs.transforms._base import Transform
from rl.envs.transforms.image._specs import resized_spec

__all__ = ["Resize"]

_MODES = ("nearest", "bilinear", "bicubic", "area")


class Resize(Transform):
    """Resizes images; a whole batch is one call.

    Reads images ``[*B, ..., H, W]``, as `ToTensorImage` writes them; writes ``[*B, ..., w, h]`` of the same dtype.
    Integers are computed in float32 and rounded. Bounds stay those of the input: output that passes them, by
    rounding or ``bicubic``, is clamped.

    Args:
        w: size of the last dimension but one, the height of an image ``[C, H, W]``.
        h: size of the last dimension; `w` if None.
        interpolation: ``"nearest"``, ``"bilinear"`` or ``"bicubic"`` of `torch.nn.functional.interpolate`, the latter
            two with antialiasing; or ``"area"``: each pixel is the mean of the area that it covers, the fractions of
            pixels at its border included (OpenCV's ``INTER_AREA`` when it shrinks an image, to the last bit for uint8).
        in_keys: images.
        out_keys: where they go; `in_keys` if None.

    Raises:
        SpecError: if a size is below 1, or the interpolation is another.

    Example:
        >>> from tensordict import TensorDict
        >>> Resize(2, 3)(TensorDict(pixels=torch.ones(5, 3, 8, 8), batch_size=[5]))["pixels"].shape
        torch.Size([5, 3, 2, 3])
    """

    def __init__(
        self,
        w: int,
        h: int | None = None,
        interpolation: Literal["nearest", "bilinear", "bicubic", "area"] = "bilinear",
        in_keys: Iterable[NestedKey] | None = None,
        out_keys: Iterable[NestedKey] | None = None,
    ) -> None:
        super().__init__(["pixels"] if in_keys is None else in_keys, out_keys)
        self.w, self.h = w, w if h is None else h
        if min(self.w, self.h) < 1:
            raise SpecError(f"Resize: w and h must be at least 1, got {self.w} and {self.h}")
        if interpolation not in _MODES:
            raise SpecError(f"Resize: interpolation must be one of {_MODES}, got {interpolation!r}")
        self.interpolation = interpolation
        self._weights: dict[tuple[int, int, torch.device, torch.dtype], Tensor] = {}

    def _apply(self, value: Tensor) -> Tensor:
        if value.ndim < 2:
            raise SpecError(f"{self!r} reads images [*B, ..., H, W], got the shape {tuple(value.shape)}")
        if self.interpolation == "nearest" and value.dtype != torch.uint8 and not value.is_floating_point():
            raise SpecError(f"{self!r} reads uint8 and floating-point images, got {value.dtype}")
        image = value if value.is_floating_point() or self.interpolation == "nearest" else value.float()
        image = image.reshape(-1, 1, *value.shape[-2:])
        if self.interpolation == "area":
            rows = self._areas(value.shape[-2], self.w, image)
            columns = self._areas(value.shape[-1], self.h, image)
            image = rows @ image @ columns.mT / (rows[0].sum() * columns[0].sum())
        else:
            smooth = self.interpolation != "nearest"
            image = interpolate(image, (self.w, self.h), mode=self.interpolation, antialias=smooth)
        image = image.reshape(*value.shape[:-2], self.w, self.h)
        if self.interpolation == "bicubic" or (value.is_floating_point() and self.interpolation != "nearest"):
            # weights add up to 1 up to rounding only: white would pass its bound
            image = image.clamp(value.amin((-2, -1), keepdim=True), value.amax((-2, -1), keepdim=True))
        return image if image.dtype == value.dtype else image.round().to(value.dtype)

    def _areas(self, size: int, new_size: int, image: Tensor) -> Tensor:
        """Length of each pixel (column) in each new one (row), ``[new_size, size]``."""
        key = (size, new_size, image.device, image.dtype)
        found = self._weights.get(key)
        if found is None:
            self._weights[key] = found = _areas(size, new_size).to(image)
        return found

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        return resized_spec(spec, self.w, self.h)


def _areas(size: int, new_size: int) -> Tensor:
    """Lengths of pixels (columns) within new ones (rows), in units that make them integers: sums of uint8 are exact."""
    unit = math.gcd(size, new_size)
    old, new = new_size // unit, size // unit  # lengths of a pixel, and of a new one
    ends, new_ends = old * torch.arange(1, size + 1), new * torch.arange(1, new_size + 1).unsqueeze(-1)
    lengths = torch.minimum(ends, new_ends) - torch.maximum(ends - old, new_ends - new)
    return lengths.clamp(min=0)
