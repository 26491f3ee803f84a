"""Value normalization by a moving average, with preserved outputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl.core.errors import ShapeError, SpecError
from rl.modules.normalize._base import ValueNorm

__all__ = ["PopArtValueNorm"]


class PopArtValueNorm(ValueNorm):
    """Value normalization by exponential moving averages, which can keep a critic's outputs where statistics change.

    Van Hasselt et al., "Learning values across many orders of magnitude", 2016: eq. 3 (statistics; here without the
    bias of their start) and eq. 6 (the weights of the last layer).

    Args:
        shape: of one value, without batch dimensions: a size, or several.
        beta: weight of the past in one update, in [0, 1).
        epsilon: lower bound of the variance.
        device: where the statistics are made.

    Raises:
        SpecError: if `beta` or `epsilon` is out of its range.

    Example:
        >>> critic, norm = nn.Linear(4, 1), PopArtValueNorm(1)
        >>> x = torch.randn(3, 4)
        >>> before = norm.denormalize(critic(x))
        >>> norm.update(torch.tensor([[100.0], [300.0]]), critic)
        >>> torch.allclose(norm.denormalize(critic(x)), before, atol=1e-3)
        True
    """

    total: Tensor

    def __init__(
        self,
        shape: int | Sequence[int] = 1,
        *,
        beta: float = 0.99999,
        epsilon: float = 1e-5,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(shape, epsilon=epsilon, device=device)
        if not 0 <= beta < 1:
            raise SpecError(f"PopArtValueNorm got beta={beta}; it is at least 0 and below 1")
        self.beta = beta
        self.register_buffer("total", torch.tensor(0.0, device=device))

    def update(self, value: Tensor, layer: nn.Linear | None = None) -> None:
        """Include targets ``[*B, *shape]`` in the statistics.

        Args:
            value: the targets.
            layer: the last layer of the critic, whose weights are changed such that ``denormalize`` of its output
                stays the same; none if None.

        Raises:
            ShapeError: if the last dimensions are not `shape`, or the layer has another number of outputs.
        """
        if layer is None:
            super().update(value)
            return
        if getattr(layer, "bias", None) is None or layer.weight.shape[0] != self.shape.numel():
            raise ShapeError(f"PopArtValueNorm needs a layer with {self.shape.numel()} outputs and a bias, got {layer}")
        mean, std = self.mean.flatten().clone(), self.std.flatten()
        super().update(value)
        with torch.no_grad():
            now = self.std.flatten()
            layer.weight.mul_((std / now).unsqueeze(-1))
            layer.bias.mul_(std).add_(mean - self.mean.flatten()).div_(now)

    def _weight(self, count: int) -> Tensor:
        del count  # a batch has one weight, whatever its size
        self.total.mul_(self.beta).add_(1 - self.beta)
        return ((1 - self.beta) / self.total).to(self.mean.dtype)
