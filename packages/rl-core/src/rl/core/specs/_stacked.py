"""`Stacked`: specs that differ, along a dimension."""

# ruff: noqa: SLF001  specs work on each other's private parts

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from textwrap import indent
from typing import Any, Self

import numpy as np
import torch
from tensordict import LazyStackedTensorDict, TensorDictBase, is_non_tensor, is_tensor_collection
from torch import Tensor

from rl.core.errors import SpecError, SpecKeyError
from rl.core.keys import NestedKey, key_str, unwrap
from rl.core.specs._base import Fault, Shape, TensorSpec
from rl.core.specs._leaf import check_count
from rl.core.specs._shape import lead_size

__all__ = ["Stacked", "combine", "stack"]

_MISSING: Any = object()


def stack(specs: Sequence[TensorSpec], dim: int = 0) -> Any:
    """What ``torch.stack`` gives: equal specs become one with another dimension, others a `Stacked`.

    Raises:
        SpecError: if there is nothing to stack, something is no spec, or the specs cannot stand side by side.
    """
    specs = list(specs)
    if not specs or not all(isinstance(spec, TensorSpec) for spec in specs):
        raise SpecError(f"torch.stack needs specs, got {[type(spec).__name__ for spec in specs]}")
    if all(spec == specs[0] for spec in specs[1:]):
        return specs[0].repeat_along(len(specs), dim)
    return Stacked(*specs, dim=dim)


TensorSpec._stack = staticmethod(stack)


def combine(values: Sequence[Any], dim: int) -> Any:
    """Values along a new dimension; lazy where they are TensorDicts, nested where tensors differ in shape.

    Raises:
        SpecError: if tensors differ in shape and `dim` is not the first dimension.
    """
    first = values[0]
    if not isinstance(first, Tensor):
        lazy = isinstance(first, TensorDictBase) and not is_non_tensor(first)
        return LazyStackedTensorDict.lazy_stack(list(values), dim) if lazy else torch.stack(list(values), dim)
    if all(value.shape == first.shape for value in values):
        return torch.stack(list(values), dim)
    if dim:
        shapes = [tuple(value.shape) for value in values]
        raise SpecError(
            f"values of shapes {shapes} cannot be stacked along dimension {dim}, only along the first; put the specs"
            " into Composites, whose values are stacked lazily"
        )
    return torch.nested.nested_tensor(list(values), layout=torch.jagged)


def _common(values: Sequence[Any]) -> Any:
    return values[0] if all(value == values[0] for value in values) else None


def _size(value: Any) -> torch.Size:
    return value.batch_size if is_tensor_collection(value) else value.shape


class Stacked(TensorSpec):
    """Specs that differ side by side along a new dimension, as ``torch.stack`` gives them.

    Where the shapes differ, `shape` has a -1. Values of composites are lazy stacks of TensorDicts, which may differ in
    keys; ``stacked[key]`` stacks the entries of one key. Numpy values are lists along the dimension.

    Args:
        specs: at least one, with the same number of dimensions, all of tensors of one dtype or all composites.
        dim: the new dimension.

    Raises:
        SpecError: if the specs cannot stand side by side.

    Example:
        >>> from rl.core.specs import Composite, Unbounded
        >>> spec = torch.stack([Composite(x=Unbounded(2)), Composite(x=Unbounded(3))])
        >>> spec.shape, spec["x"].shape
        (torch.Size([2]), torch.Size([2, -1]))
    """

    def __init__(self, *specs: TensorSpec, dim: int = 0) -> None:
        if not specs:
            raise SpecError("Stacked needs at least one spec")
        self.specs = list(specs)
        shapes = [spec.shape for spec in specs]
        labels = ", ".join(f"{spec._label} {tuple(spec.shape)} {spec.dtype}" for spec in specs)
        self._keyed = all(spec._keyed for spec in specs)
        if len({len(shape) for shape in shapes}) > 1 or len({spec.dtype for spec in specs}) > 1:
            raise SpecError(f"Stacked needs one number of dimensions and one dtype, got {labels}")
        if not self._keyed and any(spec._keyed for spec in specs):
            raise SpecError(f"Stacked cannot mix composites and leaves, got {labels}")
        if self._keyed and len(set(shapes)) > 1:
            raise SpecError(f"Stacked composites must have one shape, got {labels}")
        ndim = len(shapes[0]) + 1
        if not -ndim <= dim < ndim or dim % ndim > min(spec._free for spec in specs):
            raise SpecError(f"cannot stack along dimension {dim}: {labels}")
        self.dim = dim % ndim
        sizes = [sizes[0] if len(set(sizes)) == 1 else -1 for sizes in zip(*shapes, strict=True)]
        sizes.insert(self.dim, len(specs))
        self._shape = torch.Size(sizes)
        self._device = _common([spec.device for spec in specs])
        self._dtype = specs[0].dtype

    @property
    def domain(self) -> str | None:
        """That of the specs, if they have one in common."""
        return _common([spec.domain for spec in self.specs])

    @property
    def _free(self) -> int:
        ragged = self._shape.index(-1) if -1 in self._shape else len(self._shape)
        return min(ragged, *(spec._free + 1 for spec in self.specs))

    def __len__(self) -> int:
        """Size of the first dimension."""
        return self._shape[0]

    def __bool__(self) -> bool:
        return True

    # ------------------------------------------------------------------ keys, of composites

    def _need_keys(self) -> None:
        if not self._keyed:
            self._cannot("has no keys: it does not stack composites")

    def keys(self, include_nested: bool = False, leaves_only: bool = False) -> list[NestedKey]:  # noqa: FBT001, FBT002
        """The keys that all composites have."""
        self._need_keys()
        lists = [spec.keys(include_nested, leaves_only) for spec in self.specs]  # pyright: ignore[reportAttributeAccessIssue]  # checked
        return [key for key in lists[0] if all(key in other for other in lists[1:])]

    def get(self, key: NestedKey, default: Any = _MISSING) -> Any:
        """The entries of one key, stacked.

        Raises:
            SpecKeyError: if a composite does not have it, and there is no default.
        """
        self._need_keys()
        found = [spec.get(key, None) for spec in self.specs]  # pyright: ignore[reportAttributeAccessIssue]  # checked
        if all(spec is not None for spec in found):
            return stack(found, self.dim)
        if default is not _MISSING:
            return default
        raise SpecKeyError(f"not all specs of Stacked have an entry {key_str(key)} (keys of all: {self.keys()})")

    def __getitem__(self, index: Any) -> Any:
        is_key = isinstance(index, str) or (isinstance(index, tuple) and index and isinstance(index[0], str))
        return self.get(unwrap(index)) if is_key else super().__getitem__(index)

    # ------------------------------------------------------------------ values

    def _each(self, function: Callable[[TensorSpec], Any], lead: int) -> Any:
        return combine([function(spec) for spec in self.specs], lead + self.dim)

    def rand(self, shape: Shape = (), *, generator: torch.Generator | None = None) -> Any:
        lead = lead_size(shape)
        return self._each(lambda spec: spec.rand(lead, generator=generator), len(lead))

    def zero(self, shape: Shape = ()) -> Any:
        lead = lead_size(shape)
        return self._each(lambda spec: spec.zero(lead), len(lead))

    def one(self, shape: Shape = ()) -> Any:
        lead = lead_size(shape)
        return self._each(lambda spec: spec.one(lead), len(lead))

    def _parts(self, value: Any) -> tuple[list[Any], int]:
        """The slices of a value, and how many dimensions it has before those of the spec."""
        lead = max(len(_size(value)) - len(self._shape), 0)
        return list(value.unbind(lead + self.dim)), lead

    def _fault(self, value: Any, lead: torch.Size | None) -> Fault | None:
        if not isinstance(value, Tensor) and not is_tensor_collection(value):
            return Fault((), f"a stack of {len(self.specs)} values", f"{type(value).__name__} {value!r}"[:200])
        size = _size(value)
        extra = len(size) - len(self._shape)
        if extra < 0 or size[extra + self.dim] != len(self.specs) or (lead is not None and size[:extra] != lead):
            own = tuple((lead or torch.Size(())) + self._shape)
            return Fault((), f"shape {own} (-1: any)", f"shape {tuple(size)}")
        lead = torch.Size(size[:extra])
        for place, (spec, part) in enumerate(zip(self.specs, self._parts(value)[0], strict=True)):
            fault = spec._fault(part, lead)
            if fault is not None:
                return fault._replace(path=(str(place), *fault.path))
        return None

    def _map_values(self, method: str, *values: Any) -> Any:
        split = [self._parts(value) for value in values]
        rows = zip(self.specs, *(parts for parts, _ in split), strict=True)
        return combine([getattr(spec, method)(*row) for spec, *row in rows], split[0][1] + self.dim)

    def project(self, value: Any) -> Any:
        fault = self._fault(value, None)
        if fault is not None and not fault.path:
            raise SpecError(f"Stacked cannot project: expected {fault.expected}, got {fault.got}")
        return self._map_values("project", value)

    def encode(self, value: Any) -> Any:
        """The values of the specs, a sequence along the dimension or an array, as one value."""
        if isinstance(value, Tensor) or is_tensor_collection(value):
            return self._map_values("encode", value)
        if isinstance(value, np.ndarray):
            value = np.moveaxis(value, self.dim, 0)
        if len(value) != len(self.specs):
            raise SpecError(f"Stacked cannot encode: expected {len(self.specs)} values, got {len(value)}")
        return combine([s.encode(v) for s, v in zip(self.specs, value, strict=True)], self.dim)

    def to_numpy(self, value: Any) -> list[Any]:
        return [spec.to_numpy(part) for spec, part in zip(self.specs, self._parts(value)[0], strict=True)]

    def index(self, index: Any, tensor: Any) -> Any:
        return self._map_values("index", index, tensor)

    def to_one_hot(self, value: Any) -> Any:
        return self._map_values("to_one_hot", value)

    def to_categorical(self, value: Any) -> Any:
        return self._map_values("to_categorical", value)

    def to_one_hot_spec(self) -> Any:
        return stack([spec.to_one_hot_spec() for spec in self.specs], self.dim)

    def to_categorical_spec(self) -> Any:
        return stack([spec.to_categorical_spec() for spec in self.specs], self.dim)

    def update_mask(self, mask: Sequence[Any]) -> None:
        """One mask for each spec."""
        if len(mask) != len(self.specs):
            raise SpecError(f"Stacked needs {len(self.specs)} masks, got {len(mask)}")
        for spec, part in zip(self.specs, mask, strict=True):
            spec.update_mask(part)

    def cardinality(self) -> int | float:
        return prod(spec.cardinality() for spec in self.specs)

    def enumerate(self) -> Any:
        check_count(self)
        rows = product(*(spec.enumerate().unbind(0) for spec in self.specs))
        return combine([combine(row, self.dim) for row in rows], 0)

    # ------------------------------------------------------------------ algebra

    def _gather(self, positions: Tensor, ndim: int) -> Any:
        if ndim <= self.dim:
            new = copy.copy(self)
            new.specs = [spec._gather(positions, ndim) for spec in self.specs]
            new.dim = self.dim - ndim + positions.ndim
            new._shape = positions.shape + self._shape[ndim:]
            return new
        if not positions.numel():
            self._cannot("cannot become empty")
        if not positions.ndim or self._places(positions, ndim).unique().numel() == 1:
            return self._gather_one(positions, ndim)
        along = 0
        for dim in range(positions.ndim):  # the dimension along which the specs differ, if there is one
            if all(self._places(part, ndim).unique().numel() == 1 for part in positions.unbind(dim)):
                along = dim
                break
        return stack([self._gather(part, ndim) for part in positions.unbind(along)], along)

    def _places(self, positions: Tensor, ndim: int) -> Tensor:
        """Which spec each position belongs to."""
        return positions // prod(self._shape[self.dim + 1 : ndim]) % self._shape[self.dim]

    def _gather_one(self, positions: Tensor, ndim: int) -> Any:
        """Positions that all belong to one spec."""
        inner = prod(self._shape[self.dim + 1 : ndim])
        count = self._shape[self.dim]
        place = int(self._places(positions.reshape(-1)[0], ndim))
        own = positions // (inner * count) * inner + positions % inner
        return self.specs[place]._gather(own, ndim - 1)

    def to(self, dest: torch.device | torch.dtype | str | int) -> Self:
        return type(self)(*(spec.to(dest) for spec in self.specs), dim=self.dim)

    def _same(self, other: Any) -> bool:
        return self.dim == other.dim and self.specs == other.specs

    def __repr__(self) -> str:
        rows = [f"{place}: {spec!r}" for place, spec in enumerate(self.specs)]
        rows += [f"dim={self.dim}", f"device={self._device}", f"shape={self._shape}"]
        body = indent(",\n".join(rows), "    ")
        return f"Stacked(\n{body})"
