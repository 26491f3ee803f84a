"""`CenterCrop`: the middle of images."""

from __future__ import annotations

from collections.abc import Iterable

from rl.core.keys import NestedKey
from rl.envs.transforms.image._crop import Crop

__all__ = ["CenterCrop"]


class CenterCrop(Crop):
    """Cuts the middle out of images; see `Crop`. A half pixel is rounded to the even number.

    Args:
        w: size of the last dimension but one, the height of an image ``[C, H, W]``.
        h: size of the last dimension; `w` if None.
        in_keys: images.
        out_keys: where they go; `in_keys` if None.

    Raises:
        SpecError: if a size is below 1, or above that of the image.

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
