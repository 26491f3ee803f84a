"""Domains, returned by ``spec.space``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import indent
from typing import Any

import torch
from torch import Tensor

from rl.core.arguments import foreign_arguments
from rl.core.errors import SpecError
from rl.core.specs._base import Device, Shape, as_size
from rl.core.specs._leaf import LeafSpec


def _tensor_summary(tensor: Tensor) -> str:
    return (
        f"Tensor(shape={tensor.shape}, device={tensor.device}, dtype={tensor.dtype},"
        f" contiguous={tensor.is_contiguous()})"
    )


@dataclass(frozen=True, eq=False, repr=False)
class ContinuousBox:
    """An interval for each element.

    Args:
        low: Smallest values, ``[*shape]``.
        high: Largest values, ``[*shape]``; they belong to the domain.

    Example:
        >>> box = ContinuousBox(torch.zeros(2), torch.ones(2))
        >>> low, high = box
        >>> high
        tensor([1., 1.])
    """

    low: Tensor
    high: Tensor

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.low, self.high))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ContinuousBox):
            return NotImplemented
        return torch.equal(self.low, other.low) and torch.equal(self.high, other.high)

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # compared by content that can change

    def __repr__(self) -> str:
        rows = f"low={_tensor_summary(self.low)},\nhigh={_tensor_summary(self.high)}"
        return f"ContinuousBox(\n{indent(rows, '    ')})"


@dataclass(frozen=True)
class CategoricalBox:
    """The integers from 0 to ``n - 1``.

    Args:
        n: Number of classes, at least 1.

    Example:
        >>> CategoricalBox(3)
        CategoricalBox(n=3)
    """

    n: int


_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


def _end(value: Any, dtype: torch.dtype | None) -> Tensor:
    # A copy: the caller may write into its own tensor.
    tensor = value.detach().clone() if isinstance(value, Tensor) else torch.tensor(value)
    if dtype is None:
        dtype = tensor.dtype if tensor.dtype.is_floating_point else torch.get_default_dtype()
        if isinstance(value, float | int):
            dtype = torch.get_default_dtype()
    return _cast_end(tensor, dtype)


def _cast_end(end: Tensor, dtype: torch.dtype) -> Tensor:
    """Return an end in another dtype; an integer dtype must hold it exactly."""
    cast = end.to(dtype)
    if not dtype.is_floating_point and bool((cast.to(end.dtype) != end).any()):
        raise SpecError(
            f"Bounded: the ends {end.tolist()!r:.100} are not values of {dtype}:"
            " pass ends that it holds, or a wider dtype"
        )
    return cast


@foreign_arguments()
class Bounded(LeafSpec):
    """Values between `low` and `high`, both included, element by element.

    Draws are uniform. Where one end is infinite they lie at an exponential distance from the other, where both are
    they are standard normal: always finite.

    Args:
        low: Smallest values, a number or anything that broadcasts to `shape`.
        high: Largest values; broadcast as `low` is.
        shape: Shape of a value; that of the ends if None.
        device: Device of the values; that of `low` if it is a tensor, else the CPU.
        dtype: Float makes it continuous, integers and bool discrete; if None that of `low` if it has one and is a
            float, else the default dtype.

    Raises:
        SpecError: If the ends do not fit the shape or an integer dtype, `low` is above `high` somewhere, or one is NaN.

    Example:
        >>> spec = Bounded(-1, 1, shape=(3,))
        >>> spec.project(torch.tensor([-2.0, 0.5, 3.0]))
        tensor([-1.0000,  0.5000,  1.0000])
    """

    _parameters = ("low", "high")

    def __init__(
        self,
        low: Any,
        high: Any,
        shape: Shape | None = None,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if device is None and isinstance(low, Tensor):
            device = low.device
        low = _end(low, dtype)
        high = _end(high, dtype or low.dtype)
        try:
            size = torch.broadcast_shapes(low.shape, high.shape) if shape is None else as_size(shape)
            low, high = low.expand(size), high.expand(size)
        except RuntimeError as error:
            raise SpecError(
                f"Bounded: low of shape {tuple(low.shape)} and high of shape {tuple(high.shape)}"
                f" do not fit shape {shape}"
            ) from error
        super().__init__(size, device, low.dtype)
        self.low, self.high = low.to(self._device), high.to(self._device)
        if not bool((self.low <= self.high).all()):
            raise SpecError(f"Bounded: low must not be above high, got low {low.tolist()}, high {high.tolist()}")

    @property
    def domain(self) -> str:
        """``"continuous"`` for floats, else ``"discrete"``."""
        return "continuous" if self._dtype.is_floating_point else "discrete"

    @property
    def _label(self) -> str:
        return "BoundedContinuous" if self._dtype.is_floating_point else "BoundedDiscrete"

    @property
    def space(self) -> ContinuousBox:
        """The ends, as ``space.low`` and ``space.high``."""
        return ContinuousBox(self.low, self.high)

    # ------------------------------------------------------------------ draws

    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        kind = self._cache.get("kind")
        if kind is None:
            kind = self._cache["kind"] = self._kind()
        if kind == "uniform":
            return self._draw_uniform(shape, generator)
        if kind == "same":
            low, high = self._cache["ends"]
            return torch.randint(low, high + 1, shape, dtype=self._dtype, device=self._device, generator=generator)
        if kind == "integers":
            return self._draw_integers(shape, generator)
        return self._draw_partly_infinite(shape, generator)

    def _kind(self) -> str:
        """Which way to draw; decided once."""
        if self._dtype.is_floating_point:
            self._cache["width"] = self.high - self.low  # also inf if the bounds are the dtype's min and max
            return "uniform" if bool(self._cache["width"].isfinite().all()) else "infinite"
        if not self.low.numel():
            return "integers"
        low, high = self.low.reshape(-1), self.high.reshape(-1)
        if bool((low == low[0]).all() & (high == high[0]).all()) and high[0] < _INT64_MAX:
            self._cache["ends"] = int(low[0]), int(high[0])
            return "same"
        return "integers"

    def _draw_uniform(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        u = torch.rand(shape, dtype=self._dtype, device=self._device, generator=generator)
        return torch.addcmul(self.low, u, self._cache["width"]).clamp_(self.low, self.high)

    def _draw_partly_infinite(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        low, high = self.low, self.high
        no_low, no_high = low == -torch.inf, high == torch.inf
        u = torch.rand(shape, dtype=self._dtype, device=self._device, generator=generator)
        normal = torch.randn(shape, dtype=self._dtype, device=self._device, generator=generator)
        # Three kinds of intervals: finite ones uniform, half-infinite ones an exponential of rate 1 from their finite
        # end, the real line standard normal.
        distance = -torch.log1p(-u)  # inverse of the exponential's distribution function
        zero = torch.zeros_like(low)
        floor, ceiling = torch.where(no_low, zero, low), torch.where(no_high, zero, high)
        both = floor * (1 - u) + ceiling * u
        one_sided = torch.where(no_high, floor + distance, ceiling - distance)
        drawn = torch.where(no_low & no_high, normal, torch.where(no_low | no_high, one_sided, both))
        return torch.clamp(drawn, low, high)

    def _draw_integers(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        # One range for all elements, reduced modulo each element's count; with 64 random bits the bias is negligible.
        raw = torch.randint(_INT64_MIN, _INT64_MAX, shape, dtype=torch.int64, device=self._device, generator=generator)
        low, high = self.low.long(), self.high.long()
        count = high - low + 1  # <= 0 on overflow: the range is nearly all of int64
        within = low + raw.remainder(count.clamp(min=1))
        return torch.where(count > 0, within, torch.clamp(raw, low, high)).to(self._dtype)

    # ------------------------------------------------------------------ domain

    def _contains(self, value: Tensor) -> bool:
        low, high = self.low, self.high
        if value.device != self._device:
            low, high = low.to(value.device), high.to(value.device)
        return bool(((value >= low) & (value <= high)).all())

    def _nearest(self, value: Tensor) -> Tensor:
        low, high = self.low.to(value.device), self.high.to(value.device)
        if self._dtype is torch.bool:
            return (value | low) & high
        if self._dtype.is_floating_point:
            value = torch.where(value.isnan(), torch.zeros_like(value), value)
        return torch.clamp(value, low, high)

    def _domain_text(self) -> str:
        low, high = (f"{end.tolist()!r}" for end in (self.low, self.high))
        if len(low) > 100 and self.low.numel():
            low, high = f"{self.low.min()} at the least", f"{self.high.max()} at the most"
        return f"values from {low} to {high}"

    def cardinality(self) -> int | float:
        if self._dtype.is_floating_point:
            return float("inf")
        count = 1
        for low, high in zip(self.low.reshape(-1).tolist(), self.high.reshape(-1).tolist(), strict=True):
            count *= int(high) - int(low) + 1
        return count

    def enumerate(self) -> Tensor:
        if self._dtype.is_floating_point:
            return super().enumerate()
        from rl.core.specs._leaf import all_values

        ends = zip(self.low.reshape(-1).tolist(), self.high.reshape(-1).tolist(), strict=True)
        values = all_values(self, [range(int(low), int(high) + 1) for low, high in ends])
        return values.to(self._dtype)

    def _cast(self, dtype: torch.dtype) -> None:
        self.low, self.high = _cast_end(self.low, dtype), _cast_end(self.high, dtype)


@foreign_arguments()
class Unbounded(LeafSpec):
    """All tensors of a shape and dtype.

    Draws are standard normal for floats, small integers from -100 to 100 (0 to 100 without a sign) for integers,
    fair coins for bool.

    Args:
        shape: Shape of a value.
        device: Device of the values; the CPU if None.
        dtype: Default dtype if None.

    Example:
        >>> Unbounded(3).rand((2,)).shape
        torch.Size([2, 3])
    """

    def __init__(self, shape: Shape = (), device: Device = None, dtype: torch.dtype | None = None) -> None:
        super().__init__(shape, device, dtype or torch.get_default_dtype())

    @property
    def domain(self) -> str:
        """``"continuous"`` for floats, else ``"discrete"``."""
        return "continuous" if self._dtype.is_floating_point else "discrete"

    @property
    def _label(self) -> str:
        return "UnboundedContinuous" if self._dtype.is_floating_point else "UnboundedDiscrete"

    @property
    def space(self) -> ContinuousBox:
        """All numbers of the dtype."""
        if self._dtype.is_floating_point:
            low, high = -torch.inf, torch.inf
        elif self._dtype is torch.bool:
            low, high = False, True
        else:
            info = torch.iinfo(self._dtype)
            low, high = info.min, info.max
        ends = (torch.tensor(end, dtype=self._dtype, device=self._device) for end in (low, high))
        return ContinuousBox(*(end.expand(self._shape) for end in ends))

    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        dtype, device = self._dtype, self._device
        if dtype.is_floating_point:
            return torch.randn(shape, dtype=dtype, device=device, generator=generator)
        low, high = (0, 2) if dtype is torch.bool else (-100 if dtype.is_signed else 0, 101)
        return torch.randint(low, high, shape, dtype=dtype, device=device, generator=generator)

    def _contains(self, value: Tensor) -> bool:  # noqa: ARG002
        return True

    def _nearest(self, value: Tensor) -> Tensor:
        return value
