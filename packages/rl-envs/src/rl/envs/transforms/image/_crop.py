"""`Crop`: a part of images."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from rl.core.errors import SpecError
from rl.core.keys import NestedKey
from rl.core.specs import TensorSpec
from rl.envs.transforms._base import Transform
from rl.envs.transforms.image._specs import resized_spec

__all__ = ["Crop"]


class Crop(Transform):
    """Cuts a rectangle out of images.

    Reads images ``[*B, ..., H, W]``, as `ToTensorImage` writes them; writes
    ``value[..., top : top + w, left : left + h]`` of the same dtype.

    Args:
        w: size of the last dimension but one, the height of an image ``[C, H, W]``.
        h: size of the last dimension; `w` if None.
        top: first index of the last dimension but one.
        left: first index of the last dimension.
        in_keys: images.
        out_keys: where they go; `in_keys` if None.

    Raises:
        SpecError: if a number is negative, a size is 0, or the rectangle does not lie in the image.

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
        self.w, self.h, self.top, self.left = w, w if h is None else h, top, left
        if min(self.w, self.h) < 1 or min(top, left) < 0:
            raise SpecError(
                f"{type(self).__name__}: sizes must be at least 1 and starts at least 0, got w={self.w}, h={self.h},"
                f" top={top}, left={left}"
            )

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
