"""Hyperbolic tangent and its inverse that stay away from the bounds."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Size, Tensor
from torch.autograd import Function
from torch.distributions import constraints, register_kl
from torch.nn.functional import softplus
from torch.special import erfcx, ndtri

from rl.core.errors import ArgumentError
from rl.modules.distributions._base import LeanDistribution, check_bounds, loc_and_scale, split_shape, sum_event
from rl.modules.distributions._normal import Delta


def safetanh(input: Tensor, eps: float = 1e-6) -> Tensor:  # noqa: A002  the name that users of TorchRL know
    """Compute ``tanh(input)``, at most ``1 - eps`` in size, with the gradient ``1 - y^2`` of that value `y`.

    Beyond ``atanh(1 - eps)`` the gradient is that of the bound, small but not zero.

    Args:
        input: Tensor of any shape.
        eps: Distance from the bounds; above the resolution of the dtype, 1e-3 in float16 and 1e-2 in bfloat16.

    Example:
        >>> import torch
        >>> x = torch.tensor([0.0, 100.0], requires_grad=True)
        >>> y = safetanh(x, 0.25)
        >>> y.sum().backward()
        >>> y.tolist(), x.grad.tolist()
        ([0.0, 0.75], [1.0, 0.4375])
    """
    return _SafeTanh.apply(input, eps)  # pyright: ignore[reportReturnType]  # a tensor


def safeatanh(input: Tensor, eps: float = 1e-6) -> Tensor:  # noqa: A002  the name that users of TorchRL know
    """Compute ``atanh(y)`` of `input` clamped to ``y`` in ``[eps - 1, 1 - eps]``, with the gradient ``1 / (1 - y^2)``.

    The gradient also passes where `input` is clamped.

    Args:
        input: Tensor of any shape.
        eps: Distance from the bounds, as of `safetanh`.

    Example:
        >>> import torch
        >>> y = torch.tensor([0.0, 1.0], requires_grad=True)
        >>> x = safeatanh(y, 0.5)
        >>> x.sum().backward()
        >>> x.detach(), y.grad
        (tensor([0.0000, 0.5493]), tensor([1.0000, 1.3333]))
    """
    return _SafeAtanh.apply(input, eps)  # pyright: ignore[reportReturnType]  # a tensor


class _SafeTanh(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, eps: float) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]  # torch's second form
        return x.tanh().clamp(eps - 1, 1 - eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004  torch's signature
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (y,) = ctx.saved_tensors
        return grad * (1 - y * y), None


class _SafeAtanh(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(y: Tensor, eps: float) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]  # torch's second form
        return y.clamp(eps - 1, 1 - eps).atanh()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004  torch's signature
        y, eps = inputs
        ctx.save_for_backward(y)
        ctx.eps = eps

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (y,) = ctx.saved_tensors
        y = y.clamp(ctx.eps - 1, 1 - ctx.eps)
        return grad / (1 - y * y), None


_CONSTANT = 0.5 * math.log(2 * math.pi) + 2 * math.log(2)
_NEWTON_STEPS = 40  # the start lies beyond the root of a concave function; most take five
_NODES = 129  # trapezoid over +-8 standard deviations: error below 1e-7 up to scale 5


def _edge(dtype: torch.dtype) -> tuple[float, float]:
    eps = torch.finfo(dtype).eps
    u_max = 1 - (8 * eps if eps < 1e-5 else eps)
    return u_max, math.atanh(u_max)


# The largest tanh that is distinguished from 1, with three bits to spare, and its argument.
_EDGES = {dtype: _edge(dtype) for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16)}


class TanhNormal(LeanDistribution):
    """``low + (high - low) * (tanh(x) + 1) / 2`` of independent normal `x`.

    Haarnoja et al., "Soft Actor-Critic: Off-Policy Maximum Entropy Deep Reinforcement Learning with a Stochastic
    Actor", 2018, appendix C; the Jacobian as ``log(1 - tanh(x)^2) = 2 (log 2 - x - softplus(-2 x))``, which is
    precise for every `x`. Samples are clamped to the bounds; gradients pass through the clamp.

    A sample near a bound is rounded, and `x` cannot be recovered from it. There, two methods differ:

    - `sample_and_log_prob` scores the rounded action: exactly what `log_prob` gives for it later, as importance ratios
      need. A policy that records its log-probability without gradients calls this method.
    - `rsample_and_log_prob` scores the unrounded `x`: minus its mean is an unbiased estimate of the entropy.

    Where `low` equals `high`, that dimension is constant and has no part in log-probabilities and divergences.

    Args:
        loc: Means before squashing, ``[*B, A]``.
        scale: Standard deviations before squashing, > 0: a number, or a tensor of the same shape or one that expands
            to it.
        low: Lower bound, a number or a tensor that expands to ``[*B, A]``.
        high: Upper bound, a number or a tensor that expands to ``[*B, A]``.
        upscale: Limit of the means with `tanh_loc`: they stay within ``(-upscale, upscale)``.
        tanh_loc: Whether the means are squashed: ``upscale * tanh(loc / upscale)``.
        event_dims: Number of trailing dimensions of one action.
        validate_args: Whether parameters and values are checked; off, as a policy builds one per call. Without it,
            `log_prob` scores a value beyond a bound as the nearest one inside.

    Raises:
        ArgumentError: if `low` is above `high` or they are not finite (of tensors: only with `validate_args`).

    Example:
        >>> dist = TanhNormal(torch.zeros(3, 2), torch.ones(3, 2), low=-2.0, high=2.0)
        >>> action, log_prob = dist.rsample_and_log_prob()
        >>> action.shape, log_prob.shape, bool((action.abs() < 2).all())
        (torch.Size([3, 2]), torch.Size([3]), True)
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {  # pyright: ignore[reportIncompatibleMethodOverride]  # torch does so, too
        "loc": constraints.real,
        "scale": constraints.positive,
    }
    has_entropy = False

    def __init__(
        self,
        loc: Tensor | float,
        scale: Tensor | float,
        low: float | Tensor = -1.0,
        high: float | Tensor = 1.0,
        upscale: float | Tensor = 5.0,
        *,
        tanh_loc: bool = False,
        event_dims: int = 1,
        validate_args: bool = False,
    ) -> None:
        loc, scale = loc_and_scale("TanhNormal", loc, scale)
        if tanh_loc:
            loc = (loc / upscale).tanh() * upscale
        self.loc, self.scale, self.event_dims = loc, scale, event_dims
        if isinstance(low, Tensor):
            high = _bound_like(low, high, loc.dtype)
        elif isinstance(high, Tensor):
            low = _bound_like(high, low, loc.dtype)
        check_bounds("TanhNormal", low, high, validate_args=validate_args)
        if not isinstance(low, Tensor) and low == high:
            low, high = (torch.as_tensor(end, dtype=loc.dtype, device=loc.device) for end in (low, high))
        self.low, self.high = low, high
        self._unit = not isinstance(low, Tensor) and low == -1 and high == 1
        if not self._unit:
            self._half, self._middle = (high - low) / 2, (high + low) / 2
        self._set_shapes(*split_shape(loc.shape, event_dims), validate_args=validate_args)

    @property
    def has_rsample(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]  # torch's is a class attribute
        """Whether a sample has a gradient here; decides which of the two scores a policy records (see the class)."""
        return torch.is_grad_enabled() and (self.loc.requires_grad or self.scale.requires_grad)

    @property
    def support(self) -> constraints.Constraint:
        """The box between the bounds."""
        return constraints.independent(constraints.interval(self.low, self.high), self.event_dims)

    @property
    def median(self) -> Tensor:
        """The squashed means, ``[*B, A]``: half of the draws lie below, per dimension."""
        return self._squash(self.loc)

    @property
    def deterministic_sample(self) -> Tensor:
        """The squashed means, ``[*B, A]``."""
        return self._squash(self.loc)

    @property
    def mode(self) -> Tensor:
        """Where the density is largest, ``[*B, A]``.

        Stationary where ``x = loc + 2 scale^2 tanh(x)``, solved by Newton's method on the side of `loc`.
        """
        loc, spread = self.loc.abs(), 2 * self.scale.square()
        x = loc + spread
        for _ in range(_NEWTON_STEPS):
            u = x.tanh()
            slope = spread * (1 - u * u) - 1
            x = (x - (loc + spread * u - x) / torch.where(slope < 0, slope, -1.0)).clamp_min(0)
        return self._squash(torch.copysign(x, self.loc))

    @property
    def mean(self) -> Tensor:
        """Expected value, ``[*B, A]``, by numerical integration."""
        mean = self._integrate(self._squash)
        return mean.clamp(self.low, self.high)  # pyright: ignore[reportCallIssue, reportArgumentType]  # both forms work

    @property
    def variance(self) -> Tensor:
        """Variance of each dimension, ``[*B, A]``, by numerical integration."""
        mean = self.mean
        return self._integrate(lambda x: (self._squash(x) - mean).square())

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draw with gradient, ``[*sample_shape, *B, A]``."""
        return self._squash(_inside(self._draw(sample_shape)[0]))

    def rsample_and_log_prob(self, sample_shape: Any = ()) -> tuple[Tensor, Tensor]:
        """Sample with gradient, and score the unrounded sample, ``[*sample_shape, *B]``.

        Near saturation the score differs from ``log_prob`` of the returned action, which was rounded: by several nats
        from ``|loc| = 7`` on in float32. Store the score of `sample_and_log_prob` for probability ratios, as actors do.
        """
        x, noise = self._draw(sample_shape)
        return self._squash(_inside(x)), self._score(x, noise)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density of `value`, summed over the action dimensions, ``[*B]``, nats; finite at the bounds."""
        if self._validate_args:
            self._validate_sample(value)
        if not self._unit:
            half = self._half
            value = (value - self._middle) / (_not_zero(half) if isinstance(half, Tensor) else half)
        elif not value.is_floating_point():
            value = value.to(self.loc.dtype)
        u_max = _EDGES[value.dtype][0]
        x = value.clamp(-u_max, u_max).atanh()
        return self._score(x, (x - self.loc) / self.scale)

    def entropy(self) -> Tensor:
        """Raise, as there is no closed form.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            "the entropy of TanhNormal has no closed form (has_entropy is False):"
            " estimate it as -dist.rsample_and_log_prob()[1]"
        )

    def expand(self, batch_shape: Any, _instance: Any = None) -> TanhNormal:
        """Return the same distribution with a larger batch shape."""
        shape = Size(batch_shape) + self._event_shape
        loc, scale = self.loc.expand(shape), self.scale.expand(shape)
        return type(self)(loc, scale, self.low, self.high, event_dims=self.event_dims)

    def _draw(self, sample_shape: Any) -> tuple[Tensor, Tensor]:
        """Sample normal values, and return them with their standard normal noise."""
        loc = self.loc
        if sample_shape:
            noise = torch.randn((*sample_shape, *loc.shape), dtype=loc.dtype, device=loc.device)
        else:
            noise = torch.randn_like(loc)
        return torch.addcmul(loc, noise, self.scale), noise

    def _squash(self, x: Tensor) -> Tensor:
        if self._unit:
            return x.tanh()
        y: Tensor = x.tanh() * self._half + self._middle
        return y.clamp(self.low, self.high)  # pyright: ignore[reportCallIssue, reportArgumentType]  # both forms work

    def _score(self, x: Tensor, z: Tensor) -> Tensor:
        """Log-density at the squashed `x`, where `z` is `x` in standard deviations from the mean."""
        # minus log |d tanh / d x|, less its constant: 4 * (softplus(2 x) / 2 - x / 2)
        stretch = torch.sub(softplus(x, 2.0, 40.0), x, alpha=0.5)
        negative = torch.sub(torch.addcmul(self.scale.log(), z, z, value=0.5), stretch, alpha=4)
        constant = self._event_shape.numel() * _CONSTANT
        if self._unit:
            return -constant - sum_event(negative, self.event_dims)
        half = self._half
        if isinstance(half, Tensor):
            negative = torch.where(half > 0, negative + _not_zero(half).log(), -_CONSTANT)  # nothing where constant
            return -constant - sum_event(negative, self.event_dims)
        return -(constant + self._event_shape.numel() * math.log(half)) - sum_event(negative, self.event_dims)

    def _integrate(self, function: Any) -> Tensor:
        nodes = torch.linspace(-8, 8, _NODES, dtype=self.loc.dtype, device=self.loc.device)
        nodes = nodes.view(-1, *[1] * self.loc.ndim)
        weights = torch.softmax(-0.5 * nodes.square(), 0)
        return (weights * function(self.loc + self.scale * nodes)).sum(0)


def _not_zero(half: Tensor) -> Tensor:
    """Half the distance of the bounds; 1 where they are equal, to divide by."""
    return torch.where(half > 0, half, 1.0)


def _inside(x: Tensor) -> Tensor:
    """Clamp samples so that their tanh is below 1 in their dtype; the gradient is that of `x`."""
    x_max = _EDGES[x.dtype][1]
    if not x.requires_grad:
        return x.clamp(-x_max, x_max)
    return x.detach().clamp(-x_max, x_max) + (x - x.detach())  # in this order a large x is not rounded


def _bound_like(other: Tensor, bound: float | Tensor, dtype: torch.dtype) -> Tensor:
    """Convert a bound to a tensor, as the other one is; of `dtype` if that is a tensor of integers."""
    if isinstance(bound, Tensor):
        return bound
    return torch.as_tensor(bound, dtype=other.dtype if other.is_floating_point() else dtype, device=other.device)


def _same(a: float | Tensor, b: float | Tensor) -> bool:
    return a is b or bool(torch.as_tensor(a == b).all())


@register_kl(TanhNormal, TanhNormal)
def _kl_tanh_normal(p: TanhNormal, q: TanhNormal) -> Tensor:
    # The same bijection on both sides leaves the divergence of the normals.
    if not _same(p.low, q.low) or not _same(p.high, q.high):
        raise ArgumentError("the divergence of TanhNormals with different bounds has no closed form")
    ratio = (p.scale / q.scale).square()
    distance = ((p.loc - q.loc) / q.scale).square()
    divergence = 0.5 * (ratio + distance - 1 - ratio.log())
    if isinstance(p.low, Tensor):
        divergence = torch.where(p.low < p.high, divergence, 0.0)
    return sum_event(divergence, p.event_dims)


_SQRT_TWO, _HALF_LOG_TWO_PI = math.sqrt(2), 0.5 * math.log(2 * math.pi)
_LOG_SQRT_HALF_PI = 0.5 * math.log(math.pi / 2)
_TRUNCATED_NEWTON_STEPS = 4  # from a start that is precise to 1 / z^2


class TruncatedNormal(LeanDistribution):
    """Independent normals, each restricted to ``[low, high]``; log-probabilities are summed over them.

    In place of ``(value - loc) / scale`` all formulas use its distance from the more likely bound, and ``erfcx`` in
    place of the normal distribution function, so that means far outside of the bounds keep their precision.
    Gradients of samples are those of the inverse distribution function. Where `low` equals `high`, that dimension is
    constant and has no part in log-probabilities and entropies.

    Args:
        loc: Means before truncation, ``[*B, A]``.
        scale: Standard deviations before truncation, > 0: a number, or a tensor of the same shape or one that expands
            to it.
        upscale: Limit of the means with `tanh_loc`: they stay within ``(-upscale, upscale)``.
        low: Lower bound, a number or a tensor that expands to ``[*B, A]``.
        high: Upper bound, a number or a tensor that expands to ``[*B, A]``.
        tanh_loc: Whether the means are squashed: ``upscale * tanh(loc / upscale)``.
        event_dims: Number of trailing dimensions of one action.
        validate_args: Whether parameters and values are checked; off, as a policy builds one per call.

    Raises:
        ArgumentError: if `low` is above `high` or they are not finite (of tensors: only with `validate_args`).

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
        """Return the same distribution with a larger batch shape."""
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
    """Solve ``Phi(z) = (1 - u) Phi(far) + u Phi(near)``; in the tail by Newton's method from an exponential."""
    middle = torch.lerp(torch.special.ndtr(far), torch.special.ndtr(near), u)
    z = ndtri(middle)
    tail = near.clamp_max(-3.0)
    low = torch.minimum(far, tail)
    share = u + (1 - u) * _log_ratio(low, tail).exp()
    goal = share.clamp_min(torch.finfo(u.dtype).tiny).log()
    depth = -2 * goal / ((tail.square() - 2 * goal).sqrt() - tail)  # sqrt(tail^2 - 2 goal) - |tail|
    start = erfcx(-tail / _SQRT_TWO)
    for _ in range(_TRUNCATED_NEWTON_STEPS):
        here = erfcx((depth - tail) / _SQRT_TWO)
        error = depth * (tail - 0.5 * depth) + (here / start).log() - goal
        depth = depth + error * here * math.sqrt(math.pi / 2)
    return torch.minimum(torch.maximum(torch.where(near < -3, tail - depth, z), far), near)


class TanhDelta(Delta):
    """A deterministic action squashed into bounds: ``low + (high - low) * (tanh(param) + 1) / 2``.

    Where `low` equals `high`, that dimension is constant.

    Args:
        param: Point before squashing, ``[*B, A]``.
        low: Lower bound, a number or a tensor that expands to ``[*B, A]``.
        high: Upper bound, a number or a tensor that expands to ``[*B, A]``.
        event_dims: Number of trailing dimensions of one action; no more than `param` has.
        atol: Absolute tolerance of `log_prob`.
        rtol: Relative tolerance of `log_prob`.
        validate_args: Whether parameters and values are checked.

    Raises:
        ArgumentError: if `low` is above `high` or they are not finite (of tensors: only with `validate_args`).

    Example:
        >>> import torch
        >>> TanhDelta(torch.tensor([[0.0, 100.0]]), low=-2.0, high=2.0).sample()
        tensor([[0., 2.]])
    """

    def __init__(
        self,
        param: Tensor,
        low: float | Tensor = -1.0,
        high: float | Tensor = 1.0,
        event_dims: int = 1,
        atol: float = 1e-6,
        rtol: float = 1e-6,
        *,
        validate_args: bool = False,
    ) -> None:
        check_bounds("TanhDelta", low, high, validate_args=validate_args)
        tensors = isinstance(low, Tensor) or isinstance(high, Tensor)
        self.low, self.high = low, high
        point = param.tanh()
        if tensors or low != -1 or high != 1:
            point = point * ((high - low) / 2) + (high + low) / 2
        super().__init__(point, atol, rtol, event_dims=event_dims, validate_args=validate_args)

    @property
    def support(self) -> constraints.Constraint:
        """The box between the bounds: which of its points has the mass is data."""
        return constraints.independent(constraints.interval(self.low, self.high), self.event_dims)

    def expand(self, batch_shape: Any, _instance: Any = None) -> TanhDelta:
        """Return the same distribution with a larger batch shape."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.param = self.param.expand(Size(batch_shape) + self._event_shape)
        other._batch_shape = Size(batch_shape)
        return other
