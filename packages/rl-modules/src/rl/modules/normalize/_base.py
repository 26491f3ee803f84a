"""Base class of value normalization."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl.core.arguments import as_integer
from rl.core.errors import ShapeError, SpecError

__all__ = ["ValueNorm"]


class ValueNorm(nn.Module):
    """Mean and standard deviation of value targets, and normalization by them.

    A critic predicts ``normalize(target)``; ``denormalize(prediction)`` is its value in units of reward. A subclass
    defines `_weight`.

    Args:
        shape: of one value, without batch dimensions: a size, or several.
        epsilon: lower bound of the variance.
        device: where the statistics are made.

    Raises:
        SpecError: if `epsilon` is not positive.
    """

    mean: Tensor
    var: Tensor

    def __init__(
        self, shape: int | Sequence[int] = 1, *, epsilon: float = 1e-5, device: torch.device | str | None = None
    ) -> None:
        super().__init__()
        owner = str(type(self).__name__)
        if not epsilon > 0:
            raise SpecError(f"{owner} got epsilon={epsilon}; it is positive")
        sizes = shape if isinstance(shape, Sequence) else [shape]
        self.shape = torch.Size([as_integer(size, owner, "shape", least=1) for size in sizes])
        self.epsilon = epsilon
        self.register_buffer("mean", torch.zeros(self.shape, device=device))
        self.register_buffer("var", torch.ones(self.shape, device=device))

    @property
    def std(self) -> Tensor:
        """Standard deviation, at least the root of `epsilon`."""
        return self.var.clamp_min(self.epsilon).sqrt()

    def update(self, value: Tensor) -> None:
        """Include targets ``[*B, *shape]`` in the statistics.

        Raises:
            ShapeError: if the last dimensions are not `shape`, or there are no targets.
        """
        self._check(value)
        with torch.no_grad():
            rows = value.reshape(-1, *self.shape).to(self.mean.dtype)
            if not len(rows):
                raise ShapeError(f"{type(self).__name__}.update got no targets, their shape is {tuple(value.shape)}")
            var, mean = torch.var_mean(rows, 0, correction=0)
            share, change = self._weight(len(rows)), mean - self.mean
            # moments of a mixture of the distribution so far and the new targets
            self.var.mul_(1 - share).add_(share * var + share * (1 - share) * change.square())
            self.mean.add_(share * change)

    def normalize(self, value: Tensor) -> Tensor:
        """``(value - mean) / std``, of the same shape.

        Raises:
            ShapeError: if the last dimensions are not `shape`.
        """
        self._check(value)
        return (value - self.mean) / self.std

    def denormalize(self, value: Tensor) -> Tensor:
        """``value * std + mean``, of the same shape.

        Raises:
            ShapeError: if the last dimensions are not `shape`.
        """
        self._check(value)
        return value * self.std + self.mean

    def _weight(self, count: int) -> Tensor:
        """Weight of `count` new targets against all before, in (0, 1]; counts them."""
        raise NotImplementedError

    def _check(self, value: Tensor) -> None:
        own = len(self.shape)
        if value.shape[value.ndim - own :] != self.shape or value.ndim < own:
            raise ShapeError(f"{type(self).__name__} expects values [*B, {list(self.shape)}], got {tuple(value.shape)}")
