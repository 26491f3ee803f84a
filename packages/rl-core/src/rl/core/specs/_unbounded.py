"""`Unbounded`: every value of a shape and dtype."""

from __future__ import annotations

import torch
from torch import Tensor

from rl.core.specs._base import Device, Shape
from rl.core.specs._boxes import ContinuousBox
from rl.core.specs._leaf import LeafSpec, interval_arguments

__all__ = ["Unbounded"]


@interval_arguments
class Unbounded(LeafSpec):
    """All tensors of a shape and dtype.

    Draws are standard normal for floats, small integers from -100 to 100 (0 to 100 without a sign) for integers,
    fair coins for bool.

    Args:
        shape: shape of a value.
        device: where values live; the CPU if None.
        dtype: the default dtype if None.

    Example:
        >>> Unbounded(3).rand((2,)).shape
        torch.Size([2, 3])
    """

    def __init__(self, shape: Shape = (), device: Device = None, dtype: torch.dtype | None = None) -> None:
        super().__init__(shape, device, dtype or torch.get_default_dtype())

    @property
    def domain(self) -> str:
        """``"continuous"`` for floats, else ``"discrete"``."""
        return "continuous" if self._dtype.is_floating_point else "discrete"

    @property
    def _label(self) -> str:
        return "UnboundedContinuous" if self._dtype.is_floating_point else "UnboundedDiscrete"

    @property
    def space(self) -> ContinuousBox:
        """All numbers of the dtype."""
        if self._dtype.is_floating_point:
            low, high = -torch.inf, torch.inf
        elif self._dtype is torch.bool:
            low, high = False, True
        else:
            info = torch.iinfo(self._dtype)
            low, high = info.min, info.max
        ends = (torch.tensor(end, dtype=self._dtype, device=self._device) for end in (low, high))
        return ContinuousBox(*(end.expand(self._shape) for end in ends))

    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        dtype, device = self._dtype, self._device
        if dtype.is_floating_point:
            return torch.randn(shape, dtype=dtype, device=device, generator=generator)
        low, high = (0, 2) if dtype is torch.bool else (-100 if dtype.is_signed else 0, 101)
        return torch.randint(low, high, shape, dtype=dtype, device=device, generator=generator)

    def _contains(self, value: Tensor) -> bool:  # noqa: ARG002
        return True

    def _nearest(self, value: Tensor) -> Tensor:
        return value
