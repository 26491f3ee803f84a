"""All mass on one point."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Size, Tensor
from torch.distributions import constraints

from rl.modules.distributions._base import LeanDistribution, split_shape

__all__ = ["Delta"]


class Delta(LeanDistribution):
    """A deterministic action as a distribution.

    Args:
        param: the point, ``[*B, A]``.
        atol: absolute tolerance of `log_prob`.
        rtol: relative tolerance of `log_prob`.
        event_dims: how many trailing dimensions make one action; no more than `param` has.
        validate_args: check parameters and values.

    Example:
        >>> dist = Delta(torch.tensor([[1.0, 2.0]]))
        >>> dist.sample()
        tensor([[1., 2.]])
        >>> dist.log_prob(torch.tensor([[1.0, 3.0]]))
        tensor([-inf])
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {"param": constraints.real}  # pyright: ignore[reportIncompatibleMethodOverride]  # torch does so, too
    has_rsample = True
    has_entropy = False

    def __init__(
        self,
        param: Tensor,
        atol: float = 1e-6,
        rtol: float = 1e-6,
        *,
        event_dims: int = 1,
        validate_args: bool = False,
    ) -> None:
        self.param, self.atol, self.rtol = param, atol, rtol
        self.event_dims = min(event_dims, param.ndim)
        self._set_shapes(*split_shape(param.shape, self.event_dims), validate_args=validate_args)

    @property
    def support(self) -> constraints.Constraint:
        """All real vectors: which of them is the point is data."""
        return constraints.independent(constraints.real, self.event_dims)

    @property
    def mean(self) -> Tensor:
        """The point."""
        return self.param

    @property
    def mode(self) -> Tensor:
        """The point."""
        return self.param

    @property
    def median(self) -> Tensor:
        """The point."""
        return self.param

    @property
    def variance(self) -> Tensor:
        """Zero."""
        return torch.zeros_like(self.param)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """The point without its gradient, ``[*sample_shape, *B, A]``."""
        return self.rsample(sample_shape).detach()

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """The point, ``[*sample_shape, *B, A]``."""
        return self.param.expand(Size(sample_shape) + self.param.shape) if sample_shape else self.param

    def rsample_and_log_prob(self, sample_shape: Any = ()) -> tuple[Tensor, Tensor]:
        """The point, and infinity."""
        value = self.rsample(sample_shape)
        return value, self.log_prob(value)

    def log_prob(self, value: Tensor) -> Tensor:
        """Infinity where `value` is the point within the tolerances, minus infinity elsewhere, ``[*B]``."""
        near = torch.isclose(value, self.param, rtol=self.rtol, atol=self.atol)
        if self.event_dims:
            near = near.flatten(-self.event_dims).all(-1)
        infinity = torch.full((), torch.inf, dtype=self.param.dtype, device=self.param.device)
        return torch.where(near, infinity, -infinity)

    def entropy(self) -> Tensor:
        """Raises: the density of a point has no finite entropy.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("Delta has no finite entropy: use a stochastic policy where an entropy is needed")

    def expand(self, batch_shape: Any, _instance: Any = None) -> Delta:
        """The same distribution with a larger batch shape."""
        param = self.param.expand(Size(batch_shape) + self._event_shape)
        return type(self)(param, self.atol, self.rtol, event_dims=self.event_dims)
