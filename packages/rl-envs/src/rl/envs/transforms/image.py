"""Transforms of images."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from rl.core.arguments import as_integer, one_of
from rl.core.errors import SpecError
from rl.core.keys import NestedKey
from rl.core.specs import Bounded, TensorSpec, Unbounded
from rl.envs.transforms._base import Transform

__all__ = ["CenterCrop", "Crop", "GrayScale", "Resize", "ToTensorImage"]


def resized_spec(spec: TensorSpec, *size: int) -> TensorSpec:
    """Return the spec of images of `size`: with the lowest and the highest bound of each image.

    Args:
        spec: Spec of images ``[..., H, W]``.
        size: Sizes of the last dimensions.
    """
    shape = torch.Size((*spec.shape[: -len(size)], *size))
    if not isinstance(spec, Bounded):
        return Unbounded(shape, dtype=spec.dtype, device=spec.device)
    dims = tuple(range(-len(size), 0))
    low: Tensor = spec.space.low.amin(dims, keepdim=True).expand(shape)
    high: Tensor = spec.space.high.amax(dims, keepdim=True).expand(shape)
    return Bounded(low, high, shape=shape, dtype=spec.dtype, device=spec.device)


class Crop(Transform):
    """Cuts a rectangle out of images.

    Reads images ``[*B, ..., H, W]``, as `ToTensorImage` writes them; writes
    ``value[..., top : top + w, left : left + h]`` of the same dtype.

    Args:
        w: Size of the last dimension but one, the height of an image ``[C, H, W]``.
        h: Size of the last dimension; `w` if None.
        top: First index of the last dimension but one.
        left: First index of the last dimension.
        in_keys: Images.
        out_keys: Keys that it writes; `in_keys` if None.

    Raises:
        ArgumentError: If a number is negative, or a size is 0.
        SpecError: If the rectangle does not lie in the image.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> Crop(2, 3, top=1)(TensorDict(pixels=torch.ones(3, 8, 8)))["pixels"].shape
        torch.Size([3, 2, 3])
    """

    def __init__(
        self,
        w: int,
        h: int | None = None,
        top: int = 0,
        left: int = 0,
        in_keys: Iterable[NestedKey] | None = None,
        out_keys: Iterable[NestedKey] | None = None,
    ) -> None:
        super().__init__(["pixels"] if in_keys is None else in_keys, out_keys)
        owner = type(self).__name__
        self.w, self.h = as_integer(w, owner, "w", 1), as_integer(w if h is None else h, owner, "h", 1)
        self.top, self.left = as_integer(top, owner, "top", 0), as_integer(left, owner, "left", 0)

    def _start(self, height: int, width: int) -> tuple[int, int]:
        del height, width
        return self.top, self.left

    def _apply(self, value: Tensor) -> Tensor:
        if value.ndim < 2:
            raise SpecError(f"{self!r} reads images [*B, ..., H, W], got the shape {tuple(value.shape)}")
        height, width = value.shape[-2:]
        top, left = self._start(height, width)
        if top < 0 or left < 0 or top + self.w > height or left + self.h > width:
            raise SpecError(
                f"{self!r} cuts {self.w} x {self.h} at ({top}, {left}), outside of an image of {height} x {width}"
            )
        return value[..., top : top + self.w, left : left + self.h].contiguous()

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        self._apply(spec.zero())  # raises if the rectangle is outside
        return resized_spec(spec, self.w, self.h)


class CenterCrop(Crop):
    """Cuts the middle out of images; see `Crop`. A half pixel is rounded to the even number.

    Args:
        w: Size of the last dimension but one, the height of an image ``[C, H, W]``.
        h: Size of the last dimension; `w` if None.
        in_keys: Images.
        out_keys: Keys that it writes; `in_keys` if None.

    Raises:
        ArgumentError: If a size is below 1.
        SpecError: If a size is above that of the image.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> CenterCrop(2)(TensorDict(pixels=torch.arange(16).reshape(1, 4, 4)))["pixels"].tolist()
        [[[5, 6], [9, 10]]]
    """

    def __init__(
        self,
        w: int,
        h: int | None = None,
        in_keys: Iterable[NestedKey] | None = None,
        out_keys: Iterable[NestedKey] | None = None,
    ) -> None:
        super().__init__(w, h, in_keys=in_keys, out_keys=out_keys)

    def _start(self, height: int, width: int) -> tuple[int, int]:
        return round((height - self.w) / 2), round((width - self.h) / 2)


class GrayScale(Transform):
    """Replaces colours by their luminance.

    It is ``0.2989 R + 0.587 G + 0.114 B`` (ITU-R BT.601, as the Arcade Learning Environment has it).

    Reads images ``[*B, ..., 3, H, W]``, as `ToTensorImage` writes them; writes ``[*B, ..., 1, H, W]`` of the same
    dtype. Integers are rounded.

    Args:
        in_keys: Images.
        out_keys: Keys that it writes; `in_keys` if None.

    Raises:
        SpecError: If an image does not have three channels.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> GrayScale()(TensorDict(pixels=torch.ones(4, 3, 8, 8), batch_size=[4]))["pixels"].shape
        torch.Size([4, 1, 8, 8])
    """

    def __init__(self, in_keys: Iterable[NestedKey] | None = None, out_keys: Iterable[NestedKey] | None = None) -> None:
        super().__init__(["pixels"] if in_keys is None else in_keys, out_keys)

    def _apply(self, value: Tensor) -> Tensor:
        if value.ndim < 3 or value.shape[-3] != 3:
            raise SpecError(f"{self!r} reads images [*B, ..., 3, H, W], got the shape {tuple(value.shape)}")
        return luminance(value, -3)

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        shape = self._apply(spec.zero()).shape
        if isinstance(spec, Bounded):
            low, high = self._apply(spec.space.low), self._apply(spec.space.high)
            return Bounded(low, high, shape=shape, dtype=spec.dtype, device=spec.device)
        return Unbounded(shape, dtype=spec.dtype, device=spec.device)


def luminance(image: Tensor, dim: int) -> Tensor:
    """Return the luminance of an image with three channels along `dim`, which stays with size 1."""
    red, green, blue = image.unbind(dim)
    if image.is_floating_point():
        return (0.2989 * red + 0.587 * green + 0.114 * blue).unsqueeze(dim)
    gray = red * 0.2989
    gray.add_(green, alpha=0.587).add_(blue, alpha=0.114)
    return gray.round_().to(image.dtype).unsqueeze(dim)


_MODES = ("nearest", "bilinear", "bicubic", "area")


class Resize(Transform):
    """Resizes images; a full batch is one call.

    Reads images ``[*B, ..., H, W]``, as `ToTensorImage` writes them; writes ``[*B, ..., w, h]`` of the same dtype.
    Integers are computed in float32 and rounded. Bounds stay those of the input: output that passes them, by
    rounding or ``bicubic``, is clamped.

    Args:
        w: Size of the last dimension but one, the height of an image ``[C, H, W]``.
        h: Size of the last dimension; `w` if None.
        interpolation: Mode of interpolation: ``"nearest"``, ``"bilinear"`` or ``"bicubic"`` of
            `torch.nn.functional.interpolate`, the latter two with antialiasing; or ``"area"``: each pixel is the mean
            of the area that it covers, the fractions of pixels at its border included (OpenCV's ``INTER_AREA`` when it
            shrinks an image, to the last bit for uint8).
        in_keys: Images.
        out_keys: Keys that it writes; `in_keys` if None.

    Raises:
        ArgumentError: If a size is below 1, or the interpolation is another.

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
        self.w, self.h = as_integer(w, "Resize", "w", 1), as_integer(w if h is None else h, "Resize", "h", 1)
        self.interpolation = one_of(interpolation, "Resize", "interpolation", _MODES)
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


class ToTensorImage(Transform):
    """Moves the channels of images to the front, and scales integers to ``[0, 1]``.

    Reads images ``[*B, H, W, C]``; writes ``[*B, C, H, W]`` (`unsqueeze`: ``[*B, 1, C, H, W]``). Integers, uint8 as a
    rule, are divided by 255.

    Args:
        from_int: Whether to divide by 255; where the input is an integer if None.
        unsqueeze: Whether to add a dimension of size 1 before the channels.
        dtype: Dtype of the output; the default dtype of torch if None.
        in_keys: Images.
        out_keys: Keys that it writes; `in_keys` if None.
        shape_tolerant: Whether to leave images whose last dimension is not 3 in their order.

    Raises:
        SpecError: If an image has fewer than three dimensions.

    Example:
        >>> from tensordict import TensorDict
        >>> batch = TensorDict(pixels=torch.full((2, 5, 4, 3), 255, dtype=torch.uint8), batch_size=[2])
        >>> out = ToTensorImage()(batch)["pixels"]
        >>> out.shape, out.max().item()
        (torch.Size([2, 3, 5, 4]), 1.0)
    """

    def __init__(
        self,
        *,
        from_int: bool | None = None,
        unsqueeze: bool = False,
        dtype: torch.dtype | None = None,
        in_keys: Iterable[NestedKey] | None = None,
        out_keys: Iterable[NestedKey] | None = None,
        shape_tolerant: bool = False,
    ) -> None:
        super().__init__(["pixels"] if in_keys is None else in_keys, out_keys)
        self.from_int = from_int
        self.unsqueeze = unsqueeze
        self.dtype = torch.get_default_dtype() if dtype is None else dtype
        self.shape_tolerant = shape_tolerant

    def _apply(self, value: Tensor) -> Tensor:
        if value.ndim < 3:
            raise SpecError(f"{self!r} reads images [*B, H, W, C], got the shape {tuple(value.shape)}")
        image = value if self.shape_tolerant and value.shape[-1] != 3 else value.movedim(-1, -3)
        scaled = not value.is_floating_point() if self.from_int is None else self.from_int
        image = image.to(self.dtype).contiguous()
        image = image / 255 if scaled else image
        return image.unsqueeze(-4) if self.unsqueeze else image

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        if isinstance(spec, Bounded):
            low, high = self._apply(spec.space.low), self._apply(spec.space.high)
            return Bounded(low, high, shape=low.shape, dtype=self.dtype, device=spec.device)
        return Unbounded(self._apply(spec.zero()).shape, dtype=self.dtype, device=spec.device)
