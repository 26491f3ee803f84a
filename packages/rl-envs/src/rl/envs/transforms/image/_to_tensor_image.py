"""`ToTensorImage`: images of simulators as networks read them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from rl.core.errors import SpecError
from rl.core.keys import NestedKey
from rl.core.specs import Bounded, TensorSpec, Unbounded
from rl.envs.transforms._base import Transform

__all__ = ["ToTensorImage"]


class ToTensorImage(Transform):
    """Moves the channels of images to the front, and scales integers to ``[0, 1]``.

    Reads images ``[*B, H, W, C]``; writes ``[*B, C, H, W]`` (`unsqueeze`: ``[*B, 1, C, H, W]``). Integers, uint8 as a
    rule, are divided by 255.

    Args:
        from_int: divide by 255; where the input is an integer if None.
        unsqueeze: add a dimension of size 1 before the channels.
        dtype: of the output; the default dtype of torch if None.
        in_keys: images.
        out_keys: where they go; `in_keys` if None.
        shape_tolerant: leave images whose last dimension is not 3 in their order.

    Raises:
        SpecError: if an image has fewer than three dimensions.

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
