"""Value normalization by the statistics of all targets so far."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rl.modules.normalize._base import ValueNorm

__all__ = ["RunningValueNorm"]


class RunningValueNorm(ValueNorm):
    """Value normalization by mean and standard deviation of all targets so far.

    Args:
        shape: of one value, without batch dimensions: a size, or several.
        epsilon: lower bound of the variance.
        device: where the statistics are made.

    Raises:
        SpecError: if `epsilon` is not positive.

    Example:
        >>> norm = RunningValueNorm(1)
        >>> norm.update(torch.tensor([[1.0], [3.0]]))
        >>> norm.normalize(torch.tensor([[4.0]])), norm.denormalize(torch.tensor([[2.0]]))
        (tensor([[2.]]), tensor([[4.]]))
    """

    count: Tensor

    def __init__(
        self, shape: int | Sequence[int] = 1, *, epsilon: float = 1e-5, device: torch.device | str | None = None
    ) -> None:
        super().__init__(shape, epsilon=epsilon, device=device)
        self.register_buffer("count", torch.tensor(0, device=device))

    def _weight(self, count: int) -> Tensor:
        self.count.add_(count)
        return count / self.count
