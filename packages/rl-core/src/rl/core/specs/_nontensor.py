"""`NonTensor`: Python data."""

# ruff: noqa: SLF001  specs work on each other's private parts

from __future__ import annotations

import copy
from collections.abc import Mapping
from textwrap import indent
from typing import Any, Self

import numpy as np
import torch
from tensordict import NonTensorData, TensorDictBase, is_non_tensor, is_tensor_collection
from torch import Tensor

from rl.core.arguments import foreign_arguments
from rl.core.errors import SpecError
from rl.core.specs._base import Device, Fault, Shape, TensorSpec
from rl.core.specs._shape import lead_size

__all__ = ["NonTensor", "equal_objects"]


@foreign_arguments(
    needless={
        "batched": ("not available yet: an encoded value has the shape of the spec", None, False),
        "feature_dims": ("not available yet: all dimensions of a spec are its own", None),
    }
)
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
