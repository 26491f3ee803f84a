"""Batch renormalization."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rl.core.arguments import as_integer
from rl.core.errors import ShapeError, SpecError

__all__ = ["BatchRenorm1d"]


class BatchRenorm1d(nn.Module):
    """Batch normalization whose training and evaluation forms agree.

    Ioffe, "Batch Renormalization: Towards Reducing Minibatch Dependence in Batch-Normalized Models", 2017, algorithm
    1: ``y = (x - mean) / std * r + d`` with the statistics of the batch, where ``r = std / running_std`` and ``d =
    (mean - running_mean) / running_std``, clipped, are constants of the gradient. CrossQ (Bhatt et al., 2024) uses it
    in its critics.

    Args:
        num_features: size of the last dimension of the input.
        momentum: weight of the batch in the running statistics.
        eps: added to variances.
        max_r: `r` stays within ``1 / max_r`` and ``max_r``.
        max_d: `d` stays within ``-max_d`` and ``max_d``.
        warmup_steps: number of first training batches that are normalized by their own statistics alone (``r = 1, d =
            0``).
        smooth: whether the correction grows in a straight line during these, instead of starting after them.
        device: where the parameters are made.
        dtype: of the parameters.

    Shapes: ``[*B, num_features]`` to the same; statistics are over all batch dimensions.

    Raises:
        SpecError: if an argument is out of its range.
        ShapeError: in the call, if the last dimension is not `num_features`.

    Example:
        >>> layer = BatchRenorm1d(3, warmup_steps=0)
        >>> layer(torch.randn(5, 3)).shape
        torch.Size([5, 3])
        >>> layer.num_batches_tracked
        tensor(1)
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(
        self,
        num_features: int,
        *,
        momentum: float = 0.01,
        eps: float = 1e-5,
        max_r: float = 3.0,
        max_d: float = 5.0,
        warmup_steps: int = 10_000,
        smooth: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_features = as_integer(num_features, "BatchRenorm1d", "num_features", least=1)
        self.warmup_steps = as_integer(warmup_steps, "BatchRenorm1d", "warmup_steps", least=0)
        if not (0 < momentum <= 1 and eps >= 0 and max_r >= 1 and max_d >= 0):
            raise SpecError(
                "BatchRenorm1d needs 0 < momentum <= 1, eps >= 0, max_r >= 1 and max_d >= 0, got"
                f" {momentum}, {eps}, {max_r} and {max_d}"
            )
        self.momentum, self.eps, self.max_r, self.max_d, self.smooth = momentum, eps, max_r, max_d, smooth
        self.weight = nn.Parameter(torch.empty(self.num_features, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(self.num_features, device=device, dtype=dtype))
        self.register_buffer("running_mean", torch.empty(self.num_features, device=device, dtype=dtype))
        self.register_buffer("running_var", torch.empty(self.num_features, device=device, dtype=dtype))
        self.register_buffer("num_batches_tracked", torch.tensor(0, device=device))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set parameters and running statistics to their start."""
        with torch.no_grad():
            for ones in (self.weight, self.running_var):
                ones.fill_(1)
            for zeros in (self.bias, self.running_mean, self.num_batches_tracked):
                zeros.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """Normalize; in training mode, with the statistics of the batch, which update the running ones.

        Raises:
            ShapeError: if there is no batch dimension in training mode, or the last dimension is not `num_features`.
        """
        if x.ndim < 1 + self.training or x.shape[-1] != self.num_features:
            raise ShapeError(f"BatchRenorm1d expects [*B, {self.num_features}], got {tuple(x.shape)}")
        running_std = (self.running_var + self.eps).sqrt()
        if not self.training:
            return (x - self.running_mean) / running_std * self.weight + self.bias
        var, mean = torch.var_mean(x, tuple(range(x.ndim - 1)), correction=0)
        std = (var + self.eps).sqrt()
        with torch.no_grad():
            share = self._share(x.dtype)
            r = 1 + share * ((std / running_std).clamp(1 / self.max_r, self.max_r) - 1)
            d = share * ((mean - self.running_mean) / running_std).clamp(-self.max_d, self.max_d)
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
            self.running_var.lerp_(var.to(self.running_var.dtype), self.momentum)
            self.num_batches_tracked.add_(1)
        return ((x - mean) / std * r + d) * self.weight + self.bias

    def _share(self, dtype: torch.dtype) -> Tensor:
        """How much of the correction is applied now, in [0, 1]; a tensor, so that a compiled graph stays valid."""
        done = self.num_batches_tracked.to(dtype) / max(self.warmup_steps, 1)
        if self.warmup_steps == 0:
            return torch.ones_like(done)
        return done.clamp(max=1) if self.smooth else (done >= 1).to(dtype)

    def extra_repr(self) -> str:
        return f"{self.num_features}, momentum={self.momentum}, max_r={self.max_r}, max_d={self.max_d}"
