"""Base class of specs of plain tensors."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from math import prod
from textwrap import indent
from typing import Any, ClassVar, Self

import numpy as np
import torch
from tensordict import NonTensorData, TensorDictBase, is_non_tensor, is_tensor_collection
from torch import Tensor

from rl.core.arguments import foreign_arguments
from rl.core.errors import ArgumentError, SpecError
from rl.core.specs._base import Device, Fault, Shape, TensorSpec, lead_size, take

# ruff: noqa: SLF001  specs work on each other's private parts


_SHOWN = 16  # messages show up to this many values


def as_tensor(value: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the value as a tensor; an array or a tensor is copied, for its owner may write into it again.

    Raises:
        SpecError: If it cannot be one, or numbers would change on their way into an integer dtype.
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
        shape: Shape of a value.
        device: Device of the values; the CPU if None.
        dtype: Dtype of the values.
    """

    _parameters: ClassVar[tuple[str, ...]] = ()
    _device: torch.device
    _dtype: torch.dtype

    def __init__(self, shape: Shape, device: Device, dtype: torch.dtype) -> None:
        self._shape = lead_size(shape)
        if any(size < 0 for size in self._shape):
            raise ArgumentError(
                f"{type(self).__name__} cannot have the shape {tuple(self._shape)}: sizes are at least 0"
            )
        if not isinstance(dtype, torch.dtype):
            raise ArgumentError(f"{type(self).__name__} needs a torch.dtype such as torch.float32, got dtype={dtype!r}")
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
        """Return the domain in words, for messages."""
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
        """Return the fault of type, dtype or shape, or None."""
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
        """Describe what is outside of the domain: the value if it is small, else its first such element."""
        if value.numel() <= _SHOWN:
            return repr(value.tolist())
        outside = (self._nearest(value) != value).nonzero()  # NaN != NaN, so that NaN counts as outside
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


_MOST = 2**24  # rows of a table of choices that still fits in memory


def check_count(spec: TensorSpec) -> int:
    """Return the cardinality, if that many values can be listed.

    Raises:
        SpecError: If there are too many.
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
        spec: Spec of the values; its shape is given to the result if it has as many elements as `options`.
        options: Possible values of each element.
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


# ruff: noqa: SLF001  specs work on each other's private parts


@foreign_arguments()
class NonTensor(TensorSpec):
    """Anything that is not a tensor: text, objects.

    Values are `tensordict.NonTensorData`, one object for each element of `shape`; a lone object is also in the spec
    if `shape` is empty. Draws and zeros are `example_data`.

    Args:
        shape: Shape of a value.
        device: Device that the values name; None for none.
        dtype: None; ignored.
        example_data: Data of a random value.

    Example:
        >>> NonTensor(example_data="go left").rand().data
        'go left'
    """

    def __init__(self, shape: Shape = (), device: Device = None, dtype: None = None, example_data: Any = None) -> None:
        self._shape = lead_size(shape)
        self._device = None if device is None else torch.device(device)
        self._dtype = dtype
        self.example_data = example_data

    def _make(self, shape: Shape) -> NonTensorData:
        size = lead_size(shape) + self._shape
        return NonTensorData(self.example_data, batch_size=size, device=self._device)

    def rand(self, shape: Shape = (), *, generator: torch.Generator | None = None) -> NonTensorData:  # noqa: ARG002
        return self._make(shape)

    def zero(self, shape: Shape = ()) -> NonTensorData:
        return self._make(shape)

    def one(self, shape: Shape = ()) -> NonTensorData:
        return self._make(shape)

    def _fault(self, value: Any, lead: torch.Size | None) -> Fault | None:
        if isinstance(value, Tensor) or (is_tensor_collection(value) and not is_non_tensor(value)):
            return Fault((), "non-tensor data", f"a {type(value).__name__}")
        size = value.batch_size if is_non_tensor(value) else torch.Size(())
        start = len(size) - len(self._shape)
        if start < 0 or size[start:] != self._shape or (lead is not None and size[:start] != lead):
            return Fault((), f"shape {tuple((lead or torch.Size(())) + self._shape)}", f"shape {tuple(size)}")
        return None

    def project(self, value: Any) -> Any:
        fault = self._fault(value, None)
        if fault is not None:
            raise SpecError(f"{self._label} cannot project: expected {fault.expected}, got {fault.got}")
        return value

    def encode(self, value: Any) -> Any:
        return value if is_non_tensor(value) else self._wrap(value, self._shape)

    def _wrap(self, value: Any, shape: torch.Size) -> Any:
        """Nested lists as stacks of data."""
        if not shape:
            return NonTensorData(value, batch_size=(), device=self._device)
        if not isinstance(value, list | tuple) or len(value) != shape[0]:
            raise SpecError(f"{self._label} cannot encode: expected a list of {shape[0]} values, got {value!r}")
        if not value:
            return NonTensorData(None, batch_size=shape, device=self._device)
        return torch.stack([self._wrap(item, shape[1:]) for item in value])

    def to_numpy(self, value: Any) -> Any:
        """Return the object itself, or nested lists of objects."""
        return _plain(value.tolist()) if is_non_tensor(value) else value

    def to(self, dest: torch.device | torch.dtype | str | int) -> Self:
        new = copy.copy(self)
        if not isinstance(dest, torch.dtype):
            new._device = torch.device(dest)
        return new

    def _gather(self, positions: Tensor, ndim: int) -> Self:
        new = copy.copy(self)
        new._shape = positions.shape + self._shape[ndim:]
        return new

    def _same(self, other: Any) -> bool:
        return equal_objects(self.example_data, other.example_data)

    def __repr__(self) -> str:
        rows = (
            f"shape={self._shape},\nspace=None,\ndevice={self._device},\ndtype={self._dtype},\n"
            f"domain={self.domain},\nexample_data={self.example_data!r}"
        )
        return f"{self._label}(\n{indent(rows, '    ')})"


def equal_objects(one: Any, other: Any) -> bool:
    """Whether two Python objects are equal, also where they are or hold tensors and arrays."""
    if one is other:
        return True
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(equal_objects(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple) and type(one) is type(other):
        return len(one) == len(other) and all(map(equal_objects, one, other))
    if isinstance(one, TensorDictBase) and isinstance(other, TensorDictBase):
        return one.batch_size == other.batch_size and equal_objects(one.to_dict(), other.to_dict())
    if isinstance(one, Tensor | np.ndarray) or isinstance(other, Tensor | np.ndarray):
        return _equal_arrays(one, other)
    return bool(one == other)


def _equal_arrays(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype is other.dtype and one.device == other.device and torch.equal(one, other)
    both = isinstance(one, np.ndarray) and isinstance(other, np.ndarray)
    return both and one.dtype == other.dtype and np.array_equal(one, other)


def _plain(value: Any) -> Any:
    """Nested lists as plain lists."""
    return [_plain(item) for item in value] if isinstance(value, list) else value


def require_room(owner: LeafSpec, n: int, dtype: torch.dtype) -> None:
    """Raise if a dtype cannot hold the class ``n - 1``.

    Raises:
        SpecError: Then.
    """
    last = 1 if dtype is torch.bool else n if dtype.is_floating_point else torch.iinfo(dtype).max
    if n - 1 > last:
        raise SpecError(f"{type(owner).__name__}: {dtype} cannot hold {n} classes, only {last + 1}: pass a wider dtype")


def check_mask(owner: LeafSpec, mask: Any, shape: torch.Size) -> Tensor | None:
    """Return the mask as bool of `shape`.

    Raises:
        SpecError: If it has another shape or dtype.
    """
    if mask is None:
        return None
    mask = mask.to(owner.device) if isinstance(mask, Tensor) else torch.tensor(mask, device=owner.device)
    if mask.dtype is not torch.bool:
        raise SpecError(f"mask of {type(owner).__name__} must be bool, got {mask.dtype}")
    try:
        mask = mask.expand(shape)
    except RuntimeError as error:
        raise SpecError(
            f"mask of {type(owner).__name__} of shape {tuple(owner.shape)} must have shape {tuple(shape)},"
            f" got {tuple(mask.shape)}"
        ) from error
    return mask.clone()


def mask_text(mask: Tensor) -> str:
    """Return a small mask for a message; nothing for a large one."""
    return f"{mask.tolist()!r} " if mask.numel() <= 16 else ""


def require_choice(owner: LeafSpec, mask: Tensor | None) -> None:
    """Raise if a mask leaves nothing to choose.

    Raises:
        SpecError: If all classes of one choice are forbidden.
    """
    if mask is not None and not bool(mask.any(-1).all()):
        raise SpecError(f"mask of {type(owner).__name__} forbids every class of at least one choice")


def draw_codes(
    n: int, mask: Tensor | None, shape: torch.Size, device: torch.device, generator: torch.Generator | None
) -> Tensor:
    """Random classes, int64 ``[*shape]``; uniform among those that `mask` ``[*shape[-k:], n]`` allows."""
    if mask is None:
        return torch.randint(n, shape, device=device, generator=generator)
    # The argmax of independent uniform keys is uniform among the allowed classes.
    keys = torch.rand(*shape, n, device=device, generator=generator)
    return keys.masked_fill(~mask, -1.0).argmax(-1)


def nearest_codes(codes: Tensor, n: int, mask: Tensor | None) -> Tensor:
    """Return the allowed classes nearest to `codes`, the lower of two; int64."""
    codes = codes.clamp(0, n - 1)
    if mask is None:
        return codes
    # [*B, n]; argmin returns the first, so that the lower of two equally near classes is chosen.
    distance = (codes.unsqueeze(-1) - torch.arange(n, device=codes.device)).abs()
    return distance.masked_fill(~mask.to(codes.device), n).argmin(-1)


def best_classes(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Return the allowed class of the highest score, int64 ``[*B]``; the first of equal ones. NaN is lowest."""
    lowest = torch.finfo(torch.double).min
    scores = scores.double().nan_to_num(lowest, neginf=lowest)
    if mask is not None:
        scores = scores.masked_fill(~mask.to(scores.device), -torch.inf)
    return scores.argmax(-1)


def choose_classes(owner: LeafSpec, n: int, codes: Tensor, tensor: Tensor) -> Tensor:
    """Return the entries of `tensor` ``[*B, n]`` under `codes` ``[*B]``.

    Raises:
        SpecError: If the shapes do not agree.
    """
    if tensor.shape != (*codes.shape, n):
        raise SpecError(
            f"{type(owner).__name__}.index needs one number for each of {n} classes, shape"
            f" {(*codes.shape, n)}, got {tuple(tensor.shape)}"
        )
    return tensor.gather(-1, codes.unsqueeze(-1)).squeeze(-1)
