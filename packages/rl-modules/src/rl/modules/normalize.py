"""Normalization of value targets."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl.core.arguments import as_integer, as_number
from rl.core.errors import ShapeError

__all__ = ["PopArtValueNorm", "RunningValueNorm", "ValueNorm"]


class ValueNorm(nn.Module):
    """Mean and standard deviation of value targets, and normalization by them.

    A critic predicts ``normalize(target)``; ``denormalize(prediction)`` is its value in units of reward. A subclass
    defines `_weight`.

    Args:
        shape: Shape of one value, without batch dimensions: a size, or several.
        epsilon: Lower bound of the variance.
        device: Device of the statistics.

    Raises:
        ArgumentError: if `epsilon` is not positive.
    """

    mean: Tensor
    var: Tensor

    def __init__(
        self, shape: int | Sequence[int] = 1, *, epsilon: float = 1e-5, device: torch.device | str | None = None
    ) -> None:
        super().__init__()
        owner = str(type(self).__name__)
        epsilon = as_number(epsilon, owner, "epsilon", above=0)
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


class PopArtValueNorm(ValueNorm):
    """Value normalization by exponential moving averages, which can keep a critic's outputs where statistics change.

    Van Hasselt et al., "Learning values across many orders of magnitude", 2016: eq. 3 (statistics; here without the
    bias of their start) and eq. 6 (the weights of the last layer).

    Args:
        shape: Shape of one value, without batch dimensions: a size, or several.
        beta: Weight of the past in one update, in [0, 1).
        epsilon: Lower bound of the variance.
        device: Device of the statistics.

    Raises:
        ArgumentError: if `beta` or `epsilon` is out of its range.

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
        self.beta = as_number(beta, "PopArtValueNorm", "beta", least=0, below=1)
        self.register_buffer("total", torch.tensor(0.0, device=device))

    def update(self, value: Tensor, layer: nn.Linear | None = None) -> None:
        """Include targets ``[*B, *shape]`` in the statistics.

        Args:
            value: Targets.
            layer: Last layer of the critic, whose weights are changed such that ``denormalize`` of its output
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


class RunningValueNorm(ValueNorm):
    """Value normalization by mean and standard deviation of all targets so far.

    Args:
        shape: Shape of one value, without batch dimensions: a size, or several.
        epsilon: Lower bound of the variance.
        device: Device of the statistics.

    Raises:
        ArgumentError: if `epsilon` is not positive.

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
