"""Normal distribution cut off at bounds."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Size, Tensor
from torch.distributions import constraints
from torch.special import erfcx, ndtri

from rl.modules.distributions._base import LeanDistribution, check_bounds, loc_and_scale, split_shape, sum_event

__all__ = ["TruncatedNormal"]

_SQRT_TWO, _HALF_LOG_TWO_PI = math.sqrt(2), 0.5 * math.log(2 * math.pi)
_LOG_SQRT_HALF_PI = 0.5 * math.log(math.pi / 2)
_NEWTON_STEPS = 4  # from a start that is precise to 1 / z^2


class TruncatedNormal(LeanDistribution):
    """Independent normals, each restricted to ``[low, high]``; log-probabilities are summed over them.

    In place of ``(value - loc) / scale`` all formulas use its distance from the more likely bound, and ``erfcx`` in
    place of the normal distribution function, so that means far outside of the bounds keep their precision.
    Gradients of samples are those of the inverse distribution function. Where `low` equals `high`, that dimension is
    constant and has no part in log-probabilities and entropies.

    Args:
        loc: means before truncation, ``[*B, A]``.
        scale: standard deviations before truncation, > 0: a number, or a tensor of the same shape or one that expands
            to it.
        upscale: with `tanh_loc`, the means stay within ``(-upscale, upscale)``.
        low: lower bound, a number or a tensor that expands to ``[*B, A]``.
        high: upper bound, a number or a tensor that expands to ``[*B, A]``.
        tanh_loc: squash the means: ``upscale * tanh(loc / upscale)``.
        event_dims: how many trailing dimensions make one action.
        validate_args: check parameters and values; off, as a policy builds one per call.

    Raises:
        SpecError: if `low` is above `high` or they are not finite (of tensors: only with `validate_args`).

    Example:
        >>> dist = TruncatedNormal(torch.zeros(3, 2), torch.ones(3, 2), low=-1.0, high=0.5)
        >>> action, log_prob = dist.rsample_and_log_prob()
        >>> action.shape, log_prob.shape, bool((action <= 0.5).all())
        (torch.Size([3, 2]), torch.Size([3]), True)
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
        low: float | Tensor = -1.0,
        high: float | Tensor = 1.0,
        *,
        tanh_loc: bool = False,
        event_dims: int = 1,
        validate_args: bool = False,
    ) -> None:
        loc, scale = loc_and_scale("TruncatedNormal", loc, scale)
        if tanh_loc:
            loc = (loc / upscale).tanh() * upscale
        check_bounds("TruncatedNormal", low, high, validate_args=validate_args)
        tensors = [end for end in (low, high) if isinstance(end, Tensor)]
        if len(tensors) == 1 or (not tensors and low == high):  # torch clamps to two numbers or to two tensors
            low, high = (torch.as_tensor(end, dtype=loc.dtype, device=loc.device) for end in (low, high))
        self._fixed = low == high if isinstance(low, Tensor) else None
        self.loc, self.scale, self.low, self.high, self.event_dims = loc, scale, low, high, event_dims
        self._set_shapes(*split_shape(loc.shape, event_dims), validate_args=validate_args)

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return self.loc.device

    @property
    def support(self) -> constraints.Constraint:
        """The box between the bounds."""
        return constraints.independent(constraints.interval(self.low, self.high), self.event_dims)

    @property
    def mode(self) -> Tensor:
        """The means within the bounds, ``[*B, A]``."""
        return self.loc.clamp(self.low, self.high)  # pyright: ignore[reportCallIssue, reportArgumentType]  # both forms work

    @property
    def mean(self) -> Tensor:
        """Expected value, ``[*B, A]``."""
        far, near, sign = self._ends()
        low, high = self._densities(far, near)
        mean = (self.loc + sign * self.scale * (low - high)).clamp(self.low, self.high)  # pyright: ignore[reportCallIssue, reportArgumentType]  # both forms work
        return self._where_constant(self.low, mean)

    @property
    def variance(self) -> Tensor:
        """Variance of each dimension, ``[*B, A]``; imprecise where the mean is 100 standard deviations outside."""
        far, near, _ = self._ends()
        low, high = self._densities(far, near)
        share = (1 + far * low - near * high - (low - high).square()).clamp_min(0)
        return self._where_constant(0.0, self.scale.square() * share)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draw with gradient, ``[*sample_shape, *B, A]``."""
        return self._draw(sample_shape)

    def rsample_and_log_prob(self, sample_shape: Any = ()) -> tuple[Tensor, Tensor]:
        """Sample with gradient, and the log-probability of the sample, ``[*sample_shape, *B]``."""
        value = self._draw(sample_shape)
        return value, self.log_prob(value)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density of `value`, summed over the action dimensions, ``[*B]``, nats; minus infinity outside."""
        if self._validate_args:
            self._validate_sample(value)
        far, near, sign = self._ends()
        z = sign * (value - self.loc) / self.scale
        positive, negative = self._log_masses(far, near)
        # Both exponents less that of the bound where it is in the tail: z^2 - near^2 without cancellation.
        exponent = torch.where(near > 0, z.square(), (z - near) * (z + near))
        score = -0.5 * exponent - self.scale.log() - torch.where(near > 0, positive + _HALF_LOG_TWO_PI, negative)
        score = self._where_constant(0.0, score)
        outside = (value < self.low) | (value > self.high)
        return sum_event(score.masked_fill(outside, -torch.inf), self.event_dims)

    def entropy(self) -> Tensor:
        """Differential entropy, ``[*B]``, nats."""
        far, near, _ = self._ends()
        low, high = self._densities(far, near)
        positive, negative = self._log_masses(far, near)
        second = 1 + far * low - near * high  # mean of z^2
        tail = 0.5 * (second - near.square()) + negative
        entropy = torch.where(near > 0, 0.5 * second + positive + _HALF_LOG_TWO_PI, tail) + self.scale.log()
        return sum_event(self._where_constant(0.0, entropy), self.event_dims)

    def expand(self, batch_shape: Any, _instance: Any = None) -> TruncatedNormal:
        """The same distribution with a larger batch shape."""
        shape = Size(batch_shape) + self._event_shape
        loc, scale = self.loc.expand(shape), self.scale.expand(shape)
        return type(self)(loc, scale, low=self.low, high=self.high, event_dims=self.event_dims)

    def _ends(self) -> tuple[Tensor, Tensor, Tensor]:
        """Both bounds in standard deviations, mirrored so that ``far < 0`` and ``|near| <= |far|``, and the sign.

        Where they are equal, the upper one is a standard deviation above, so that all formulas stay finite.
        """
        low, high = (self.low - self.loc) / self.scale, (self.high - self.loc) / self.scale
        high = self._where_constant(low + 1, high)
        sign = torch.where(low + high > 0, -1.0, 1.0).to(low.dtype)
        return torch.where(sign > 0, low, -high), torch.where(sign > 0, high, -low), sign

    def _where_constant(self, constant: float | Tensor, value: Tensor) -> Tensor:
        """`constant` in the dimensions whose bounds are equal, `value` in the others."""
        return value if self._fixed is None else torch.where(self._fixed, constant, value)

    def _log_masses(self, far: Tensor, near: Tensor) -> tuple[Tensor, Tensor]:
        """Log of the mass between the bounds: itself, for ``near > 0``; and in the tail, less the density at `near`."""
        # The derivative of a clamp at its bound is 1 before torch 2.14 and 0 since; it is 1 here.
        tail, low = (torch.where(end > 0, 0, end) for end in (near, far))
        above = torch.where(near > 0, near, 1.0)
        mass = 0.5 * (torch.erf(above / _SQRT_TWO) - torch.erf(torch.where(near > 0, low, -1.0) / _SQRT_TWO))
        apart = torch.where(near > 0, -1.0, _log_ratio(low, tail).clamp_max(-torch.finfo(near.dtype).tiny))
        return mass.log(), erfcx(-tail / _SQRT_TWO).log() + _LOG_SQRT_HALF_PI + (-torch.expm1(apart)).log()

    def _densities(self, far: Tensor, near: Tensor) -> tuple[Tensor, Tensor]:
        """Densities of the truncated standard normal at `far` and `near`."""
        positive, negative = self._log_masses(far, near)
        inside = near > 0
        log_mass = torch.where(inside, positive + _HALF_LOG_TWO_PI, negative)
        low, high = (-0.5 * (torch.where(inside, end.square(), (end - near) * (end + near))) for end in (far, near))
        return (low - log_mass).exp(), (high - log_mass).exp()

    def _draw(self, sample_shape: Any) -> Tensor:
        far, near, sign = self._ends()
        u = torch.rand((*sample_shape, *far.shape), dtype=far.dtype, device=far.device)
        with torch.no_grad():
            z = _inverse(u, far, near)
            # dz / dfar and dz / dnear at fixed u: of Phi(z) = (1 - u) Phi(far) + u Phi(near)
            of_far = (1 - u) * (0.5 * (z - far) * (z + far)).exp()
            of_near = (u.clamp_min(torch.finfo(u.dtype).tiny).log() + 0.5 * (z - near) * (z + near)).exp()
        if far.requires_grad:
            z = z + of_far * (far - far.detach()) + of_near * (near - near.detach())
        value = self.loc + sign * self.scale * z
        value = value + (value.detach().clamp(self.low, self.high) - value.detach())  # pyright: ignore[reportCallIssue, reportArgumentType]  # both forms work
        return self._where_constant(self.low, value)


def _log_ratio(far: Tensor, tail: Tensor) -> Tensor:
    """``log(Phi(far) / Phi(tail))`` of ``far <= tail <= 0``."""
    return 0.5 * (tail - far) * (tail + far) + (erfcx(-far / _SQRT_TWO) / erfcx(-tail / _SQRT_TWO)).log()


def _inverse(u: Tensor, far: Tensor, near: Tensor) -> Tensor:
    """The `z` with ``Phi(z) = (1 - u) Phi(far) + u Phi(near)``; in the tail by Newton's method from an exponential."""
    middle = torch.lerp(torch.special.ndtr(far), torch.special.ndtr(near), u)
    z = ndtri(middle)
    tail = near.clamp_max(-3.0)
    low = torch.minimum(far, tail)
    share = u + (1 - u) * _log_ratio(low, tail).exp()
    goal = share.clamp_min(torch.finfo(u.dtype).tiny).log()
    depth = -2 * goal / ((tail.square() - 2 * goal).sqrt() - tail)  # sqrt(tail^2 - 2 goal) - |tail|
    start = erfcx(-tail / _SQRT_TWO)
    for _ in range(_NEWTON_STEPS):
        here = erfcx((depth - tail) / _SQRT_TWO)
        error = depth * (tail - 0.5 * depth) + (here / start).log() - goal
        depth = depth + error * here * math.sqrt(math.pi / 2)
    return torch.minimum(torch.maximum(torch.where(near < -3, tail - depth, z), far), near)
