"""Normal distribution over action vectors."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Size, Tensor
from torch.distributions import constraints, register_kl

from rl.modules.distributions._base import LeanDistribution, loc_and_scale, split_shape, sum_event

_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


class IndependentNormal(LeanDistribution):
    """Independent normals, one per action dimension; log-probabilities are summed over them.

    Args:
        loc: Means, ``[*B, A]``.
        scale: Standard deviations, > 0: a number, or a tensor of the same shape or one that expands to it.
        upscale: Limit of the means with `tanh_loc`: they stay within ``(-upscale, upscale)``.
        tanh_loc: Whether the means are squashed: ``upscale * tanh(loc / upscale)``.
        event_dims: Number of trailing dimensions of one action.
        validate_args: Whether parameters and values are checked; off, as a policy builds one per call.

    Example:
        >>> dist = IndependentNormal(torch.zeros(3, 2), torch.ones(3, 2))
        >>> dist.sample().shape, dist.log_prob(torch.zeros(3, 2)).shape
        (torch.Size([3, 2]), torch.Size([3]))
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {  # pyright: ignore[reportIncompatibleMethodOverride]  # torch does so, too
        "loc": constraints.real,
        "scale": constraints.positive,
    }
    has_rsample = True

    def __init__(
        self,
        loc: Tensor | float,
        scale: Tensor | float,
        upscale: float | Tensor = 5.0,
        *,
        tanh_loc: bool = False,
        event_dims: int = 1,
        validate_args: bool = False,
    ) -> None:
        loc, scale = loc_and_scale("IndependentNormal", loc, scale)
        if tanh_loc:
            loc = (loc / upscale).tanh() * upscale
        self.loc, self.scale, self.event_dims = loc, scale, event_dims
        self._set_shapes(*split_shape(loc.shape, event_dims), validate_args=validate_args)

    @property
    def support(self) -> constraints.Constraint:
        """All real vectors."""
        return constraints.independent(constraints.real, self.event_dims)

    @property
    def mean(self) -> Tensor:
        """The means, ``[*B, A]``."""
        return self.loc

    @property
    def mode(self) -> Tensor:
        """The means, ``[*B, A]``."""
        return self.loc

    @property
    def median(self) -> Tensor:
        """The means, ``[*B, A]``."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """Squared standard deviations, ``[*B, A]``."""
        return self.scale.square()

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draw with gradient, ``[*sample_shape, *B, A]``."""
        return torch.addcmul(self.loc, self._noise(sample_shape), self.scale)

    def rsample_and_log_prob(self, sample_shape: Any = ()) -> tuple[Tensor, Tensor]:
        """Sample with gradient, and the log-probability of the sample, ``[*sample_shape, *B]``."""
        noise = self._noise(sample_shape)
        return torch.addcmul(self.loc, noise, self.scale), self._score(noise)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density of `value`, summed over the action dimensions, ``[*B]``, nats."""
        if self._validate_args:
            self._validate_sample(value)
        return self._score((value - self.loc) / self.scale)

    def entropy(self) -> Tensor:
        """Differential entropy, ``[*B]``, nats."""
        constant = self._event_shape.numel() * (0.5 + _HALF_LOG_TWO_PI)
        return sum_event(self.scale.log(), self.event_dims) + constant

    def expand(self, batch_shape: Any, _instance: Any = None) -> IndependentNormal:
        """Return the same distribution with a larger batch shape."""
        shape = Size(batch_shape) + self._event_shape
        return type(self)(self.loc.expand(shape), self.scale.expand(shape), event_dims=self.event_dims)

    def _noise(self, sample_shape: Any) -> Tensor:
        if sample_shape:
            return torch.randn((*sample_shape, *self.loc.shape), dtype=self.loc.dtype, device=self.loc.device)
        return torch.randn_like(self.loc)

    def _score(self, z: Tensor) -> Tensor:
        negative = torch.addcmul(self.scale.log(), z, z, value=0.5)
        return -self._event_shape.numel() * _HALF_LOG_TWO_PI - sum_event(negative, self.event_dims)


@register_kl(IndependentNormal, IndependentNormal)
def _kl_normal(p: IndependentNormal, q: IndependentNormal) -> Tensor:
    ratio = (p.scale / q.scale).square()
    distance = ((p.loc - q.loc) / q.scale).square()
    return sum_event(0.5 * (ratio + distance - 1 - ratio.log()), p.event_dims)


class Delta(LeanDistribution):
    """A deterministic action as a distribution.

    Args:
        param: Point, ``[*B, A]``.
        atol: Absolute tolerance of `log_prob`.
        rtol: Relative tolerance of `log_prob`.
        event_dims: Number of trailing dimensions of one action; no more than `param` has.
        validate_args: Whether parameters and values are checked.

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
        """Return the point without its gradient, ``[*sample_shape, *B, A]``."""
        return self.rsample(sample_shape).detach()

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Return the point, ``[*sample_shape, *B, A]``."""
        return self.param.expand(Size(sample_shape) + self.param.shape) if sample_shape else self.param

    def rsample_and_log_prob(self, sample_shape: Any = ()) -> tuple[Tensor, Tensor]:
        """Return the point, and infinity."""
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
        """Raise, as the density of a point has no finite entropy.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("Delta has no finite entropy: use a stochastic policy where an entropy is needed")

    def expand(self, batch_shape: Any, _instance: Any = None) -> Delta:
        """Return the same distribution with a larger batch shape."""
        param = self.param.expand(Size(batch_shape) + self._event_shape)
        return type(self)(param, self.atol, self.rtol, event_dims=self.event_dims)
