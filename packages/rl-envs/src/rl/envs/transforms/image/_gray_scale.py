"""`GrayScale`: the luminance of colour images."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from rl.core.errors import SpecError
from rl.core.keys import NestedKey
from rl.core.specs import Bounded, TensorSpec, Unbounded
from rl.envs.transforms._base import Transform

__all__ = ["GrayScale", "luminance"]


class GrayScale(Transform):
    """Replaces colours by their luminance.

    It is ``0.2989 R + 0.587 G + 0.114 B`` (ITU-R BT.601, as the Arcade Learning Environment has it).

    Reads images ``[*B, ..., 3, H, W]``, as `ToTensorImage` writes them; writes ``[*B, ..., 1, H, W]`` of the same
    dtype. Integers are rounded.

    Args:
        in_keys: images.
        out_keys: where they go; `in_keys` if None.

    Raises:
        SpecError: if an image does not have three channels.

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
    """The luminance of an image with three channels along `dim`, which stays with size 1."""
    red, green, blue = image.unbind(dim)
    if image.is_floating_point():
        return (0.2989 * red + 0.587 * green + 0.114 * blue).unsqueeze(dim)
    gray = red * 0.2989
    gray.add_(green, alpha=0.587).add_(blue, alpha=0.114)
    return gray.round_().to(image.dtype).unsqueeze(dim)
