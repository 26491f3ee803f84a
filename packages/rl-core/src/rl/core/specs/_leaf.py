"""Base class of specs of plain tensors."""

# ruff: noqa: SLF001  specs work on each other's private parts

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from math import prod
from textwrap import indent
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from rl.core.arguments import foreign_arguments
from rl.core.errors import SpecError
from rl.core.specs._base import Device, Fault, Shape, TensorSpec
from rl.core.specs._shape import lead_size, take

__all__ = ["LeafSpec", "all_values", "as_tensor", "check_count", "interval_arguments", "one_hot_arguments"]

interval_arguments = foreign_arguments(
    needless={"domain": ("needless: it follows from the dtype", ...)},
    replaced={"minimum": "use low=", "maximum": "use high="},
)
one_hot_arguments = foreign_arguments(needless={"use_register": ("not available yet: classes are 0 to n - 1", False)})

_SHOWN = 16  # messages show up to this many values


def as_tensor(value: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The value as a tensor; an array or a tensor is copied, for its owner may write into it again.

    Raises:
        SpecError: if it cannot be one, or numbers would change on their way into an integer dtype.
    """
    try:
        if isinstance(value, np.ndarray):
            native = value.copy() if value.dtype.isnative else value.astype(value.dtype.newbyteorder("="))
            tensor = torch.from_numpy(native)
            if tensor.dtype is dtype:
                return tensor if device.type == "cpu" else tensor.to(device)
        elif isinstance(value, Tensor):
            if value.dtype is dtype:
                return value.to(device, copy=True)
            tensor = value
        elif dtype.is_floating_point or (type(value) is int and dtype is not torch.bool):
            return torch.tensor(value, dtype=dtype, device=device)
        else:
            tensor = torch.tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SpecError(f"cannot encode {value!r:.200} as {dtype}: {error}") from error
    encoded = tensor.to(device, dtype)
    if not dtype.is_floating_point and tensor.dtype is not torch.bool and bool((encoded.to(tensor) != tensor).any()):
        raise SpecError(f"cannot encode {value!r:.200} as {dtype}: the numbers would change")
    return encoded


class LeafSpec(TensorSpec):
    """A spec whose values are tensors.

    A subclass names its parameter tensors, whose leading dimensions are those of the spec, in `_parameters`.

    Args:
        shape: shape of a value.
        device: where values live; the CPU if None.
        dtype: their dtype.
    """

    _parameters: ClassVar[tuple[str, ...]] = ()
    _device: torch.device
    _dtype: torch.dtype

    def __init__(self, shape: Shape, device: Device, dtype: torch.dtype) -> None:
        self._shape = lead_size(shape)
        if any(size < 0 for size in self._shape):
            raise SpecError(f"{type(self).__name__} cannot have the shape {tuple(self._shape)}: sizes are at least 0")
        if not isinstance(dtype, torch.dtype):
            raise SpecError(f"{type(self).__name__} needs a torch.dtype such as torch.float32, got dtype={dtype!r}")
        self._device = torch.device("cpu" if device is None else device)
        self._dtype = dtype
        self._cache: dict[str, Any] = {}

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    @property
    @abstractmethod
    def space(self) -> Any:
        """The domain."""

    @abstractmethod
    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        """Random values of the full shape `shape`."""

    @abstractmethod
    def _contains(self, value: Tensor) -> bool:
        """Whether values of the right shape and dtype are in the domain."""

    @abstractmethod
    def _nearest(self, value: Tensor) -> Tensor:
        """Values of the right shape and dtype, brought into the domain."""

    def _domain_text(self) -> str:
        """The domain in words, for messages."""
        return f"values in {self.space!r}"

    # ------------------------------------------------------------------ values

    def _full(self, shape: Shape) -> torch.Size:
        return lead_size(shape) + self._shape

    def rand(self, shape: Shape = (), *, generator: torch.Generator | None = None) -> Tensor:
        return self._draw(self._full(shape), generator)

    def zero(self, shape: Shape = ()) -> Tensor:
        return torch.zeros(self._full(shape), dtype=self._dtype, device=self._device)

    def one(self, shape: Shape = ()) -> Tensor:
        return torch.ones(self._full(shape), dtype=self._dtype, device=self._device)

    def _form_fault(self, value: Any, lead: torch.Size | None) -> Fault | None:
        """What is wrong with type, dtype or shape."""
        if not isinstance(value, Tensor):
            return Fault((), "a tensor", f"{type(value).__name__} {value!r}"[:200])
        if value.dtype is not self._dtype:
            return Fault((), f"dtype {self._dtype}", f"{value.dtype}")
        shape, own = value.shape, self._shape
        if lead is None:
            if shape == own or (len(shape) > len(own) and shape[len(shape) - len(own) :] == own):
                return None
            return Fault((), f"shape {tuple(own)}, or more leading dimensions", f"shape {tuple(shape)}")
        if shape != lead + own:
            return Fault((), f"shape {tuple(lead + own)}", f"shape {tuple(shape)}")
        return None

    def _fault(self, value: Any, lead: torch.Size | None) -> Fault | None:
        fault = self._form_fault(value, lead)
        if fault is not None:
            return fault
        if self._contains(value):
            return None
        return Fault((), self._domain_text(), self._outside_text(value))

    def _outside_text(self, value: Tensor) -> str:
        """What of a value is outside of the domain: all of it if it is small, else the first such element."""
        if value.numel() <= _SHOWN:
            return repr(value.tolist())
        outside = (self._nearest(value) != value).nonzero()  # a NaN differs from whatever it becomes
        place = tuple(outside[0].tolist())
        return f"{value[place].item()!r} at {place}, one of {len(outside)} outside of {value.numel()}"

    def project(self, value: Tensor) -> Tensor:
        fault = self._form_fault(value, None)
        if fault is not None:
            raise SpecError(f"{self._label} cannot project: expected {fault.expected}, got {fault.got}")
        return value if self._contains(value) else self._nearest(value)

    def encode(self, value: Any) -> Tensor:
        tensor = as_tensor(value, self._dtype, self._device)
        return tensor if tensor.shape == self._shape else self._check_encoded(tensor, self._shape)

    def _check_encoded(self, tensor: Tensor, own: torch.Size) -> Tensor:
        shape = tensor.shape
        if len(shape) < len(own) or shape[len(shape) - len(own) :] != own:
            raise SpecError(f"{self._label} cannot encode: expected shape {tuple(own)}, got {tuple(shape)}")
        return tensor

    def to_numpy(self, value: Tensor) -> Any:
        value = value.detach().cpu()
        return (value.float() if value.dtype is torch.bfloat16 else value).numpy()[()]

    # ------------------------------------------------------------------ algebra

    def _copy(self) -> Self:
        new = copy.copy(self)
        new._cache = {}
        return new

    def _gather(self, positions: Tensor, ndim: int) -> Self:
        new = self._copy()
        new._shape = positions.shape + self._shape[ndim:]
        for name in self._parameters:
            parameter = getattr(self, name)
            if parameter is not None:
                setattr(new, name, take(parameter, positions, ndim))
        return new

    def to(self, dest: torch.device | torch.dtype | str | int) -> Self:
        new = self._copy()
        if isinstance(dest, torch.dtype):
            new._dtype = dest
            new._cast(dest)
            return new
        new._device = torch.device(dest)
        for name in self._parameters:
            parameter = getattr(self, name)
            if parameter is not None:
                setattr(new, name, parameter.to(new.device))
        return new

    def _cast(self, dtype: torch.dtype) -> None:
        """Bring what has the values' dtype to `dtype`, in place."""

    def _same(self, other: Any) -> bool:
        for name in self._parameters:
            mine, theirs = getattr(self, name), getattr(other, name)
            if (mine is None) != (theirs is None) or (mine is not None and not torch.equal(mine, theirs)):
                return False
        return True

    def __repr__(self) -> str:
        rows = (
            f"shape={self._shape},\nspace={self.space!r},\ndevice={self._device},\n"
            f"dtype={self._dtype},\ndomain={self.domain}"
        )
        return f"{self._label}(\n{indent(rows, '    ')})"


_MOST = 2**24  # as many rows as a table of choices can sensibly have


def check_count(spec: TensorSpec) -> int:
    """The cardinality, if that many values can be listed.

    Raises:
        SpecError: if there are too many.
    """
    count = spec.cardinality()
    if count > _MOST:
        raise SpecError(
            f"{type(spec).__name__} of shape {tuple(spec.shape)} has {count} values: at most {_MOST} can be enumerated"
        )
    return int(count)


def all_values(spec: TensorSpec, options: Sequence[Sequence[int]]) -> Tensor:
    """Every combination of the options of each element, the last element fastest: ``[count, len(options)]``.

    Args:
        spec: whose values; its shape is given to the result if it has as many elements as `options`.
        options: for each element, what it can be.
    """
    count = check_count(spec)
    rows = torch.empty(count, len(options), dtype=torch.int64, device=spec.device)
    inner = prod(len(option) for option in options)
    outer = 1
    for place, option in enumerate(options):
        inner //= len(option)
        column = torch.tensor(list(option), dtype=torch.int64, device=spec.device)
        rows[:, place] = column.repeat_interleave(inner).repeat(outer)
        outer *= len(option)
    return rows.reshape(count, *spec.shape) if len(options) == spec.numel() else rows
