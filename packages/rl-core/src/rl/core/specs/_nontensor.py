"""`NonTensor`: Python data; and `Choice`: one of several specs or values."""

# ruff: noqa: SLF001  specs work on each other's private parts

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import prod
from textwrap import indent
from typing import Any, Self

import numpy as np
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, TensorDictBase, is_non_tensor, is_tensor_collection
from torch import Tensor

from rl.core.errors import SpecError
from rl.core.specs import _foreign
from rl.core.specs._base import Device, Fault, Shape, TensorSpec
from rl.core.specs._bounded import Bounded
from rl.core.specs._choices import check_count
from rl.core.specs._shape import lead_size

__all__ = ["Choice", "NonTensor"]


@_foreign.non_tensor
class NonTensor(TensorSpec):
    """Anything that is not a tensor: text, objects.

    Values are `tensordict.NonTensorData`, one object for each element of `shape`; a lone object is also in the spec
    if `shape` is empty. Draws and zeros are `example_data`.

    Args:
        shape: shape of a value.
        device: what is written on the values; None if they shall not say.
        dtype: ignored; there for symmetry, and always None.
        example_data: what draws give.

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
        """The object itself, or nested lists of objects."""
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
        return _equal(self.example_data, other.example_data)

    def __repr__(self) -> str:
        rows = (
            f"shape={self._shape},\nspace=None,\ndevice={self._device},\ndtype={self._dtype},\n"
            f"domain={self.domain},\nexample_data={self.example_data!r}"
        )
        return f"{self._label}(\n{indent(rows, '    ')})"


def _equal(one: Any, other: Any) -> bool:
    """Whether two Python objects are equal, also where they are or hold tensors and arrays."""
    if one is other:
        return True
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_equal(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple) and type(one) is type(other):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, TensorDictBase) and isinstance(other, TensorDictBase):
        return one.batch_size == other.batch_size and _equal(one.to_dict(), other.to_dict())
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


class Exactly(NonTensor):
    """One object: a choice of `Choice`."""

    def _fault(self, value: Any, lead: torch.Size | None) -> Fault | None:
        fault = super()._fault(value, lead)
        if fault is None and not _equal(self.to_numpy(value), self.to_numpy(self._make(()))):
            return Fault((), repr(self.example_data), repr(value)[:200])
        return fault

    def project(self, value: Any) -> Any:  # noqa: ARG002  there is only one
        return self._make(())

    def cardinality(self) -> int:
        return 1

    def enumerate(self) -> Any:
        return self._make((1,))


def _as_spec(choice: Any) -> TensorSpec:
    if isinstance(choice, TensorSpec):
        return choice
    if isinstance(choice, Tensor):
        return Bounded(choice, choice, dtype=choice.dtype)
    if isinstance(choice, NonTensorData):
        return Exactly(choice.batch_size, choice.device, example_data=choice.data)
    return Exactly(example_data=choice)


class Choice(TensorSpec):
    """One of several specs or values; each element of the leading dimensions chooses for itself.

    Args:
        choices: specs, tensors, or Python objects, of one shape, dtype and device; composites may differ in keys.

    Raises:
        SpecError: if there are none, or they differ in shape, dtype or device.

    Example:
        >>> spec = Choice(["left", "right"]).expand(2)
        >>> spec.is_in(spec.encode(["right", "left"])), spec.cardinality()
        (True, 4)
    """

    def __init__(self, choices: Sequence[Any]) -> None:
        self.choices = [_as_spec(choice) for choice in choices]
        forms = [(tuple(choice.shape), choice.dtype, choice.device) for choice in self.choices]
        if not forms or any(form != forms[0] for form in forms):
            raise SpecError(f"Choice needs at least one choice, all of one shape, dtype and device, got {forms}")
        first = self.choices[0]
        self._lead = torch.Size(())
        self._shape, self._dtype, self._device = first.shape, first.dtype, first.device

    @property
    def domain(self) -> str | None:
        """That of the first choice."""
        return self.choices[0].domain

    @property
    def _free(self) -> int:
        return len(self._lead)

    # ------------------------------------------------------------------ one element at a time

    def _tree(self, lead: Sequence[int], make: Callable[[], Any]) -> Any:
        """What `make` makes, for each element of the leading dimensions, stacked."""
        if not lead:
            return make()
        return combine_dense([self._tree(lead[1:], make) for _ in range(lead[0])])

    def _map(self, value: Any, ndim: int, function: Callable[[Any], Any]) -> Any:
        """`function` of each element of the first `ndim` dimensions, stacked."""
        if not ndim:
            return function(value)
        return combine_dense([self._map(part, ndim - 1, function) for part in value.unbind(0)])

    def _elements(self, value: Any, ndim: int) -> list[Any]:
        if not ndim:
            return [value]
        return [element for part in value.unbind(0) for element in self._elements(part, ndim - 1)]

    def _of(self, element: Any) -> TensorSpec | None:
        """The first choice that holds an element."""
        return next((c for c in self.choices if c._fault(element, torch.Size(())) is None), None)

    def rand(self, shape: Shape = (), *, generator: torch.Generator | None = None) -> Any:
        lead = lead_size(shape) + self._lead
        if not prod(lead):
            return self.choices[0].rand(lead, generator=generator)

        def draw() -> Any:
            device = generator.device if generator is not None else "cpu"
            which = int(torch.randint(len(self.choices), (), generator=generator, device=device))
            return self.choices[which].rand(generator=generator)

        return self._tree(lead, draw)

    def zero(self, shape: Shape = ()) -> Any:
        return self.choices[0].zero(lead_size(shape) + self._lead)

    def one(self, shape: Shape = ()) -> Any:
        return self.choices[0].one(lead_size(shape) + self._lead)

    def _extent(self, value: Any, lead: torch.Size | None) -> tuple[torch.Size, Fault | None]:
        """The leading dimensions of a value, and what is wrong with its shape."""
        has_shape = isinstance(value, Tensor) or is_tensor_collection(value)
        size = torch.Size(()) if not has_shape else getattr(value, "batch_size", None) or value.shape
        start = len(size) - len(self._shape)
        if start < 0 or size[start:] != self._shape or (lead is not None and size[:start] != lead):
            wanted = tuple((lead or torch.Size(())) + self._shape)
            return size, Fault((), f"shape {wanted}", f"shape {tuple(size)}")
        return torch.Size(size[: start + len(self._lead)]), None

    def _fault(self, value: Any, lead: torch.Size | None) -> Fault | None:
        extent, fault = self._extent(value, lead)
        if fault is not None:
            return fault
        for element in self._elements(value, len(extent)):
            if self._of(element) is None:
                faults = [choice._fault(element, torch.Size(())) for choice in self.choices]
                expected = " or ".join(fault.expected for fault in faults if fault is not None)
                return Fault((), expected, f"{element!r}"[:200])
        return None

    def project(self, value: Any) -> Any:
        extent, fault = self._extent(value, None)
        if fault is not None:
            raise SpecError(f"{self._label} cannot project: expected {fault.expected}, got {fault.got}")
        return self._map(value, len(extent), self._nearest)

    def _nearest(self, element: Any) -> Any:
        if self._of(element) is not None:
            return element
        if not isinstance(element, Tensor):
            return self.choices[0].project(element)
        candidates = [choice.project(element) for choice in self.choices]
        there = element.double().nan_to_num(0.0)
        return min(candidates, key=lambda candidate: float((candidate.double() - there).abs().sum()))

    def encode(self, value: Any) -> Any:
        """An element as the first choice that takes it; a list of elements where there are leading dimensions."""
        return self._encode(value, self._lead)

    def _encode(self, value: Any, lead: torch.Size) -> Any:
        if lead:
            if len(value) != lead[0]:
                raise SpecError(f"Choice cannot encode: expected {lead[0]} values, got {len(value)}")
            return combine_dense([self._encode(item, lead[1:]) for item in value])
        for choice in self.choices:
            try:
                encoded = choice.encode(value)
            except (SpecError, TypeError, ValueError, AttributeError, RuntimeError):
                continue
            if choice.is_in(encoded):
                return encoded
        raise SpecError(f"Choice cannot encode {value!r}: it belongs to none of the {len(self.choices)} choices")

    def to_numpy(self, value: Any) -> Any:
        """An element as its choice gives it; nested lists where there are leading dimensions."""
        extent, _ = self._extent(value, None)
        return self._unpack(value, len(extent))

    def _unpack(self, value: Any, ndim: int) -> Any:
        if ndim:
            return [self._unpack(part, ndim - 1) for part in value.unbind(0)]
        choice = self._of(value)
        if choice is None:
            raise SpecError(f"Choice: {value!r} belongs to none of the {len(self.choices)} choices")
        return choice.to_numpy(value)

    def cardinality(self) -> int | float:
        """The sum over the choices (what two of them share counts twice), for each element."""
        return sum(choice.cardinality() for choice in self.choices) ** prod(self._lead)

    def enumerate(self) -> Any:
        check_count(self)
        elements = [element for choice in self.choices for element in choice.enumerate().unbind(0)]
        rows = [iter(row) for row in product(elements, repeat=prod(self._lead))]
        return combine_dense([self._tree(self._lead, row.__next__) for row in rows])

    # ------------------------------------------------------------------ algebra

    def _gather(self, positions: Tensor, ndim: int) -> Self:
        new = copy.copy(self)
        new.choices = [choice.clone() for choice in self.choices]
        new._lead = positions.shape + self._lead[ndim:]
        new._shape = positions.shape + self._shape[ndim:]
        return new

    def to(self, dest: torch.device | torch.dtype | str | int) -> Self:
        new = copy.copy(self)
        new.choices = [choice.to(dest) for choice in self.choices]
        new._dtype, new._device = new.choices[0].dtype, new.choices[0].device
        return new

    def _same(self, other: Any) -> bool:
        return self.choices == other.choices

    def __repr__(self) -> str:
        rows = [f"{choice!r}" for choice in self.choices]
        rows += [f"device={self._device}", f"shape={self._shape}"]
        body = indent(",\n".join(rows), "    ")
        return f"Choice(\n{body})"


def combine_dense(values: Sequence[Any]) -> Any:
    """Values along a new first dimension; TensorDicts with the same keys become one."""
    if is_tensor_collection(values[0]) and not is_non_tensor(values[0]):
        return LazyStackedTensorDict.maybe_dense_stack(list(values), 0)
    return torch.stack(list(values))
