"""Base class of distributions: cheap construction, sample and log-probability in one call."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Size, Tensor, nn
from torch import distributions as torch_distributions
from torch.nn.functional import softplus

from rl.core.arguments import as_number
from rl.core.errors import ArgumentError, ShapeError
from rl.core.policy_program import ProgramBuilder, Register


class LeanDistribution(torch_distributions.Distribution):
    """A `torch.distributions.Distribution` that does nothing at construction that it was not asked for.

    A policy builds one per call, so arguments are checked only with ``validate_args=True``.

    Attributes:
        has_entropy: Whether `entropy` has a closed form. Where it is False, ``entropy()`` raises
            `NotImplementedError`; estimate it as ``-log_prob`` of a sample.
    """

    has_entropy: ClassVar[bool] = True
    _validate_args = False

    def _set_shapes(self, batch_shape: Size, event_shape: Size, *, validate_args: bool) -> None:
        self._batch_shape = batch_shape
        self._event_shape = event_shape
        if validate_args:
            super().__init__(batch_shape, event_shape, validate_args=True)

    @property
    def deterministic_sample(self) -> Tensor:
        """The value that stands for the distribution when nothing shall be random."""
        return self.mode

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw without gradient, ``[*sample_shape, *batch_shape, *event_shape]``."""
        with torch.no_grad():
            return self.rsample(sample_shape)

    def sample_and_log_prob(self, sample_shape: Any = ()) -> tuple[Tensor, Tensor]:
        """Sample, and the log-probability of the sample, which keeps its gradient."""
        value = self.sample(sample_shape)
        return value, self.log_prob(value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_shape={tuple(self.batch_shape)}, event_shape={tuple(self.event_shape)})"


def loc_and_scale(owner: str, loc: Tensor | float, scale: Tensor | float) -> tuple[Tensor, Tensor]:
    """Location and scale as tensors of one shape; a number takes the dtype and device of the other.

    Raises:
        ArgumentError: if one is neither a tensor nor a number.
    """
    if isinstance(loc, Tensor) and isinstance(scale, Tensor):
        if loc.shape == scale.shape:
            return loc, scale
        expanded = torch.broadcast_tensors(loc, scale)
        return expanded[0], expanded[1]
    form = loc if isinstance(loc, Tensor) else scale if isinstance(scale, Tensor) else torch.zeros(())
    try:
        tensors = [torch.as_tensor(one, dtype=form.dtype, device=form.device) for one in (loc, scale)]
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(
            f"{owner} needs loc and scale as tensors or numbers, got {loc!r:.50} and {scale!r:.50}"
        ) from error
    return loc_and_scale(owner, tensors[0], tensors[1])


def sum_event(value: Tensor, event_dims: int) -> Tensor:
    """Sum over the last `event_dims` dimensions."""
    if event_dims == 1:
        return value.sum(-1)
    return value if event_dims == 0 else value.flatten(-event_dims).sum(-1)


def split_shape(shape: Size, event_dims: int) -> tuple[Size, Size]:
    """Batch shape and event shape of parameters.

    Raises:
        ShapeError: if there are fewer dimensions than `event_dims`.
    """
    cut = len(shape) - event_dims
    if cut < 0:
        raise ShapeError(f"event_dims={event_dims} of parameters with shape {tuple(shape)}: too few dimensions")
    return shape[:cut], shape[cut:]


def check_bounds(owner: str, low: float | Tensor, high: float | Tensor, *, validate_args: bool) -> None:
    """Reject bounds that are infinite or out of order; tensors are checked only with `validate_args`.

    Raises:
        ArgumentError: if so.
    """
    if not validate_args and (isinstance(low, Tensor) or isinstance(high, Tensor)):
        return
    fits: bool | Tensor = (low <= high) & (low > -math.inf) & (high < math.inf)
    if not (fits.all() if isinstance(fits, Tensor) else fits):
        raise ArgumentError(f"{owner} needs finite low <= high, got low={low}, high={high}")


def scale_mapping(name: str) -> Callable[[Tensor], Tensor]:
    """Return a function from real numbers to positive ones.

    Args:
        name: Name: ``"exp"``, ``"softplus"``, ``"relu"``, ``"expln"``, ``"biased_softplus"`` (0 becomes 1),
            ``"biased_softplus_V"`` (0 becomes V) or ``"biased_softplus_V_M"`` (and nothing becomes less than M,
            otherwise 0.01).

    Raises:
        ArgumentError: if there is no such mapping.

    Example:
        >>> scale_mapping("biased_softplus_0.5")(torch.zeros(1))
        tensor([0.5000])
    """
    simple: dict[str, Callable[[Tensor], Tensor]] = {
        "exp": torch.exp,
        "softplus": softplus,
        "relu": torch.relu,
        "expln": _expln,
    }
    if name in simple:
        return simple[name]
    if not name.startswith("biased_softplus"):
        raise ArgumentError(f"no scale mapping is called {name!r}: use one of {[*simple, 'biased_softplus_1.0']}")
    try:
        given = [float(part) for part in name.removeprefix("biased_softplus").split("_") if part]
        bias, least = (*given, *(1.0, 0.01)[len(given) :])
    except ValueError:
        raise ArgumentError(f"expected biased_softplus_V or biased_softplus_V_M with numbers, got {name!r}") from None
    if not 0 <= least < bias:
        raise ArgumentError(f"{name!r}: the least value {least} must lie between 0 and the value at zero, {bias}")
    shift = math.log(math.expm1(bias - least))
    return partial(_biased_softplus, shift=shift, least=least)  # a closure could not be sent to a worker


def _biased_softplus(x: Tensor, shift: float, least: float) -> Tensor:
    return softplus(x + shift) + least


def _expln(x: Tensor) -> Tensor:
    """Exponential below zero, ``1 + log(1 + x)`` above: positive and growing slowly (van Hoof et al., 2017)."""
    return torch.where(x > 0, x.clamp_min(0).log1p() + 1, torch.where(x > 0, 0, x).exp())


class NormalParamExtractor(nn.Module):
    """Split the last dimension into means and standard deviations.

    Args:
        scale_mapping: Name of the function that makes the second half positive; see the function `scale_mapping`.
        scale_lb: Lower bound of the standard deviations.

    Shapes: ``[*B, 2 A]`` to ``loc`` and ``scale``, ``[*B, A]`` each.

    Raises:
        ArgumentError: if there is no such mapping, or `scale_lb` is negative.
        ShapeError: in the call, if the last dimension is odd.

    Example:
        >>> loc, scale = NormalParamExtractor()(torch.zeros(3, 4))
        >>> loc.shape, scale
        (torch.Size([3, 2]), tensor([[1., 1.],
                [1., 1.],
                [1., 1.]]))
    """

    def __init__(self, scale_mapping: str = "biased_softplus_1.0", scale_lb: float = 1e-4) -> None:
        super().__init__()
        self.scale_mapping = scale_mapping
        self.scale_lb = as_number(scale_lb, "NormalParamExtractor", "scale_lb", least=0)
        self._mapping = _mapping_named(scale_mapping)

    def forward(self, *features: Tensor) -> tuple[Tensor, ...]:
        """Means, standard deviations, and further inputs as they came."""
        first, *rest = features
        if first.shape[-1] % 2:
            raise ShapeError(
                f"NormalParamExtractor halves the last dimension, got {tuple(first.shape)}:"
                " the network before it needs 2 outputs per action dimension"
            )
        loc, raw = first.chunk(2, -1)
        return (loc, self._mapping(raw).clamp_min(self.scale_lb), *rest)

    def describe(self, builder: ProgramBuilder, first: Register, *rest: Register) -> tuple[Register, ...]:
        """Append both halves to a program; see `rl.core.policy_program`."""
        if first.width is None or first.width % 2:
            builder.reject("NormalParamExtractor halves an input of unknown or odd width")
        half = first.width // 2
        loc, raw, scale = Register(half), Register(half), Register(half)
        builder.add("split", [first], [loc, raw])
        low = self.scale_lb
        if isinstance(self._mapping, partial):
            shift, least = (self._mapping.keywords[name] for name in ("shift", "least"))
            builder.add("scale", [raw], [scale], plus=least, low=low, mapping="softplus", shift=shift)
        elif self._mapping is torch.exp:
            builder.add("scale", [raw], [scale], mapping="exp", low=math.log(low) if low else -math.inf)
        elif self._mapping in (softplus, torch.relu):
            builder.add("scale", [raw], [scale], mapping="relu" if self._mapping is torch.relu else "softplus", low=low)
        else:
            builder.reject(f"NormalParamExtractor has scale_mapping={self.scale_mapping!r}")
        return (loc, scale, *rest)

    def extra_repr(self) -> str:
        return f"scale_mapping={self.scale_mapping!r}, scale_lb={self.scale_lb}"


_mapping_named = scale_mapping
