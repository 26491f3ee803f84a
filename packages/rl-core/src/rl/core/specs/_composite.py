"""`Composite`: a tree of specs, the spec of a TensorDict."""

from __future__ import annotations

import copy
from abc import ABCMeta
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import signature
from itertools import product
from math import prod
from textwrap import indent
from typing import Any, Self, cast

import numpy as np
import torch
from tensordict import (
    LazyStackedTensorDict,
    NonTensorData,
    TensorDict,
    TensorDictBase,
    is_non_tensor,
    is_tensor_collection,
    is_tensorclass,
)
from torch import Tensor

from rl.core.arguments import foreign_arguments
from rl.core.errors import SpecError, SpecKeyError
from rl.core.keys import NestedKey, as_tuple, key_str, nearest, unwrap
from rl.core.specs._base import Device, Fault, Shape, TensorSpec, lead_size
from rl.core.specs._continuous import Bounded, Unbounded
from rl.core.specs._leaf import NonTensor, check_count

# ruff: noqa: SLF001  specs work on each other's private parts


_MISSING: Any = object()


class _KeyList(list[NestedKey]):
    """Keys in order; a tuple of one string is the string."""

    def __contains__(self, key: object) -> bool:
        return super().__contains__(unwrap(key) if isinstance(key, tuple) and key else key)


def _is_key(index: Any) -> bool:
    return isinstance(index, str) or (
        isinstance(index, tuple) and bool(index) and all(isinstance(part, str) for part in index)
    )


class Composite(TensorSpec):
    """Specs by key: the spec of a TensorDict whose batch size is `shape`.

    Args:
        specs: Specs by key; a tuple is a path, a mapping becomes a nested composite, None is left out.
        shape: Leading dimensions that all specs share; none if None.
        device: Device of the values; None leaves each where its own spec says.
        data_cls: Class of the values, such as a tensorclass: draws have it, and no value of another class is in the
            spec; any TensorDict if None.
        kwargs: Further specs by key.

    Raises:
        SpecError: If a spec does not start with `shape`.

    Example:
        >>> from rl.core.specs import Unbounded
        >>> spec = Composite(observation=Unbounded(3), agents={"action": Unbounded((2, 1))})
        >>> spec.keys(include_nested=True, leaves_only=True)
        ['observation', ('agents', 'action')]
        >>> spec.rand((5,)).batch_size
        torch.Size([5])
    """

    _keyed = True

    def __init__(
        self,
        specs: Mapping[Any, Any] | None = None,
        /,
        *,
        shape: Shape = (),
        device: Device = None,
        data_cls: Any = None,
        **kwargs: Any,
    ) -> None:
        self.data_cls = data_cls
        self._shape = lead_size(shape)
        self._device = None if device is None else torch.device(device)
        self._dtype = None
        self._specs: dict[str, TensorSpec] = {}
        self._is_locked = False
        self.update(specs or {})
        self.update(kwargs)

    # ------------------------------------------------------------------ a tree of specs

    @property
    def batch_size(self) -> torch.Size:
        """The same as `shape`."""
        return self._shape

    @property
    def is_locked(self) -> bool:
        """Whether `lock_` forbids changes."""
        return self._is_locked

    @property
    def locked(self) -> bool:
        """The same as `is_locked`."""
        return self._is_locked

    def lock_(self) -> Self:
        """Reject changes here and in nested composites, so that cached keys stay valid."""
        return self._set_lock(locked=True)

    def unlock_(self) -> Self:
        """Allow changes again."""
        return self._set_lock(locked=False)

    def _set_lock(self, *, locked: bool) -> Self:
        self._is_locked = locked
        for spec in self._specs.values():
            if isinstance(spec, Composite):
                spec._set_lock(locked=locked)
        return self

    def _require_unlocked(self, what: str) -> None:
        if self._is_locked:
            raise SpecError(f"cannot {what}: this Composite is locked; unlock_() it first, or change a clone()")

    def _adopt(self, key: NestedKey, spec: Any) -> TensorSpec:
        """Return the spec as it can stand under `key`."""
        if isinstance(spec, Mapping):
            spec = Composite(spec, shape=self._shape, device=self._device)
        if not isinstance(spec, TensorSpec):
            raise SpecError(f"entry {key_str(key)} of Composite must be a spec, got {type(spec).__name__}")
        if spec.shape[: len(self._shape)] != self._shape:
            raise SpecError(
                f"entry {key_str(key)} of Composite of shape {tuple(self._shape)} must start with that shape,"
                f" got {tuple(spec.shape)}; expand it"
            )
        if self._device is not None and spec.device != self._device:
            spec = spec.to(self._device)
        return spec

    def set(self, key: NestedKey, spec: Any) -> Self:
        """Put a spec under a key; a path creates the nested composites that it needs, None removes the entry."""
        if not _is_key(key):
            raise SpecError(f"a key of Composite is a string or a tuple of strings, got {key!r}")
        if spec is None:
            self.pop(key, None)
            return self
        self._require_unlocked(f"set {key_str(key)}")
        first, *rest = as_tuple(key)
        if rest:
            child = self._specs.get(first)
            if child is None:
                child = Composite(shape=self._shape, device=self._device)
            if not isinstance(child, Composite):
                raise SpecError(f"cannot set {key_str(key)}: {key_str(first)} is a {type(child).__name__}, a leaf")
            child.set(unwrap(rest), spec)
            self._specs[first] = child  # after the check, so that a rejected spec leaves no empty level
        else:
            self._specs[first] = self._adopt(first, spec)
        return self

    def get(self, key: NestedKey, default: Any = _MISSING) -> Any:
        """Return the spec under a key.

        Raises:
            SpecKeyError: If there is none, and no default.
        """
        spec: Any = self
        for part in as_tuple(key):
            specs = getattr(spec, "_specs", None)
            if specs is not None:
                spec = specs.get(part)
            elif spec is not None:
                spec = spec.get(part, None) if spec._keyed else None
        if spec is not None:
            return spec
        if default is not _MISSING:
            return default
        present = self.keys(include_nested=True)
        close = nearest(key, present)
        hint = f"; did you mean {key_str(close)}?" if close is not None else ""
        raise SpecKeyError(f"Composite has no entry {key_str(key)} (keys: {present}){hint}")

    def update(self, specs: Any) -> Self:
        """Set several: a mapping, or another composite, whose nested entries are merged into those here."""
        for key, spec in specs.items():
            mine = self._specs.get(key) if isinstance(key, str) else None
            if isinstance(mine, Composite) and isinstance(spec, Mapping | Composite):
                mine.update(spec)
            else:
                self.set(key, spec)
        return self

    def pop(self, key: NestedKey, default: Any = _MISSING) -> Any:
        """Remove a spec and return it."""
        self._require_unlocked(f"remove {key_str(key)}")
        *path, last = as_tuple(key)
        parent = self.get(unwrap(path), None) if path else self
        if not isinstance(parent, Composite) or last not in parent._specs:
            return self.get(key, default)
        return parent._specs.pop(last)

    def __getitem__(self, index: Any) -> Any:
        return self.get(index) if _is_key(index) else super().__getitem__(index)

    def __setitem__(self, key: NestedKey, spec: Any) -> None:
        self.set(key, spec)

    def __delitem__(self, key: NestedKey) -> None:
        self.pop(key)

    def __contains__(self, key: object) -> bool:
        return _is_key(key) and self.get(key, None) is not None  # pyright: ignore[reportArgumentType]  # checked

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)

    def __bool__(self) -> bool:
        return True

    def keys(self, include_nested: bool = False, leaves_only: bool = False) -> list[NestedKey]:  # noqa: FBT001, FBT002
        """Return the keys, as TensorDict lists them.

        Args:
            include_nested: Whether to list keys of nested composites too, as paths.
            leaves_only: Whether to leave out the keys of composites.
        """
        return _KeyList(key for key, _ in self.items(include_nested, leaves_only))

    def values(self, include_nested: bool = False, leaves_only: bool = False) -> list[TensorSpec]:  # noqa: FBT001, FBT002
        """Return the specs under `keys`."""
        return [spec for _, spec in self.items(include_nested, leaves_only)]

    def items(
        self,
        include_nested: bool = False,  # noqa: FBT001, FBT002
        leaves_only: bool = False,  # noqa: FBT001, FBT002
    ) -> list[tuple[NestedKey, TensorSpec]]:
        """Keys and specs."""
        found: list[tuple[NestedKey, TensorSpec]] = []
        for key, spec in self._specs.items():
            nested = isinstance(spec, Composite)
            if not (nested and leaves_only):
                found.append((key, spec))
            if nested and include_nested:
                inner = spec.items(include_nested, leaves_only)
                found.extend(((key, *as_tuple(path)), leaf) for path, leaf in inner)
        return found

    def empty(self) -> Self:
        """Return a spec of the same shape and device without entries."""
        return type(self)(shape=self._shape, device=self._device, data_cls=self.data_cls)

    # ------------------------------------------------------------------ values

    def _build(self, values: dict[str, Any], lead: torch.Size) -> Any:
        if self.data_cls is None:
            return TensorDict(values, batch_size=lead + self._shape, device=self._device)
        return self.data_cls.from_dict(values, batch_size=lead + self._shape, device=self._device)

    def rand(self, shape: Shape = (), *, generator: torch.Generator | None = None) -> TensorDict:
        lead = lead_size(shape)
        return self._build({k: s.rand(lead, generator=generator) for k, s in self._specs.items()}, lead)

    def zero(self, shape: Shape = ()) -> TensorDict:
        lead = lead_size(shape)
        return self._build({key: spec.zero(lead) for key, spec in self._specs.items()}, lead)

    def one(self, shape: Shape = ()) -> TensorDict:
        lead = lead_size(shape)
        return self._build({key: spec.one(lead) for key, spec in self._specs.items()}, lead)

    def _fault(self, value: Any, lead: torch.Size | None) -> Fault | None:
        if not is_tensor_collection(value) or isinstance(value, NonTensorData):
            return Fault((), "a TensorDict", f"{type(value).__name__} {value!r}"[:200])
        if self.data_cls is not None and type(value) is not self.data_cls:
            return Fault((), f"a {self.data_cls.__name__}", f"a {type(value).__name__}")
        if is_tensorclass(value):  # `get` of a tensorclass unwraps Python data
            value = value._tensordict
        if lead is None:
            size = value.batch_size
            lead = torch.Size(size[: max(len(size) - len(self._shape), 0)])
            if size != lead + self._shape:
                return Fault((), f"batch size {tuple(self._shape)}", f"batch size {tuple(size)}")
        for key, spec in self._specs.items():
            entry = value.get(key, None)
            if entry is None:
                return Fault((key,), "an entry", f"none (keys: {list(value.keys())})")
            fault = spec._fault(entry, lead)
            if fault is not None:
                return fault._replace(path=(key, *fault.path))
        return None

    def project(self, value: TensorDictBase) -> TensorDictBase:
        out = value.copy()
        for key, spec in self._specs.items():
            entry = value.get(key, None)
            if entry is None:
                raise SpecError(
                    f"Composite cannot project: entry {key_str(key)} is missing (keys: {list(value.keys())})"
                )
            out.set(key, spec.project(entry))
        return out

    def encode(self, value: Any) -> TensorDict:
        """Return the TensorDict of a mapping with the same keys, no more and no fewer."""
        if not isinstance(value, Mapping) and not is_tensor_collection(value):
            raise SpecError(f"Composite cannot encode: expected a mapping of {list(self._specs)}, got {value!r:.200}")
        if value.keys() != self._specs.keys():
            raise SpecError(f"Composite cannot encode: expected keys {list(self._specs)}, got {list(value.keys())}")
        return self._build({k: s.encode(value[k]) for k, s in self._specs.items()}, torch.Size(()))

    def to_numpy(self, value: Any) -> dict[str, Any]:
        return {key: spec.to_numpy(value.get(key)) for key, spec in self._specs.items()}

    def _map_values(self, method: str, value: Any) -> TensorDict:
        entries = {k: getattr(s, method)(value.get(k)) for k, s in self._specs.items()}
        return TensorDict(entries, batch_size=value.batch_size, device=self._device)

    def to_one_hot(self, value: TensorDictBase) -> TensorDict:
        """Each entry in its one-hot form."""
        return self._map_values("to_one_hot", value)

    def to_categorical(self, value: TensorDictBase) -> TensorDict:
        """Each entry in its categorical form."""
        return self._map_values("to_categorical", value)

    def to_one_hot_spec(self) -> Composite:
        return self._map(lambda spec: spec.to_one_hot_spec())

    def to_categorical_spec(self) -> Composite:
        return self._map(lambda spec: spec.to_categorical_spec())

    def index(self, index: TensorDictBase, tensor: TensorDictBase) -> TensorDict:
        entries = {k: s.index(index.get(k), tensor.get(k)) for k, s in self._specs.items()}
        return TensorDict(entries, batch_size=index.batch_size, device=self._device)

    def update_mask(self, mask: Mapping[str, Any]) -> None:
        """Masks by key, nested like the specs."""
        for key, part in mask.items():
            self.get(key).update_mask(part)

    def cardinality(self) -> int | float:
        return prod(spec.cardinality() for spec in self._specs.values())

    def enumerate(self) -> TensorDict:
        from rl.core.specs._leaf import check_count

        inner = count = check_count(self)
        values: dict[str, Any] = {}
        for key, spec in self._specs.items():
            inner //= max(int(spec.cardinality()), 1)
            rows = torch.arange(count) // inner % max(int(spec.cardinality()), 1)
            values[key] = spec.enumerate()[rows]
        return self._build(values, torch.Size((count,)))

    # ------------------------------------------------------------------ algebra

    def _map(self, function: Any) -> Any:
        new = copy.copy(self)
        new._is_locked = False
        new._specs = {key: function(spec) for key, spec in self._specs.items()}
        return new

    def _gather(self, positions: Tensor, ndim: int) -> Composite:
        new: Composite = self._map(lambda spec: spec._gather(positions, ndim))
        new._shape = positions.shape + self._shape[ndim:]
        return new

    def to(self, dest: torch.device | torch.dtype | str | int) -> Self:
        new = self._map(lambda spec: spec.to(dest))
        if not isinstance(dest, torch.dtype):
            new._device = torch.device(dest)
        return new

    def _same(self, other: Any) -> bool:
        return (
            self.data_cls is other.data_cls
            and self._specs.keys() == other._specs.keys()
            and all(spec == other._specs[key] for key, spec in self._specs.items())
        )

    def __repr__(self) -> str:
        rows = [f"{key}: {spec!r}" for key, spec in self._specs.items()]
        rows += [f"device={self._device}", f"shape={self._shape}", f"data_cls={self.data_cls}"]
        body = indent(",\n".join(rows), "    ")
        return f"Composite(\n{body})"


@foreign_arguments()
def make_composite_from_td(data: TensorDictBase, *, unsqueeze_null_shapes: bool = True) -> Composite:
    """Return the spec of the entries of a TensorDict, without bounds: `Unbounded`, and `NonTensor` for Python data.

    Args:
        data: A TensorDict or tensorclass; the batch size is the shape of the spec.
        unsqueeze_null_shapes: Whether entries of shape ``()`` get the shape ``(1,)``.

    Example:
        >>> data = TensorDict(observation=torch.zeros(3), next=TensorDict(reward=torch.zeros(())))
        >>> spec = make_composite_from_td(data)
        >>> spec["next", "reward"].shape, spec.zero()["observation"].tolist()
        (torch.Size([1]), [0.0, 0.0, 0.0])
    """
    specs: dict[str, TensorSpec] = {}
    for key, value in data.items():
        entry: Any = value
        if is_non_tensor(entry):
            example = entry.reshape(-1)[0].data if entry.batch_size else entry.data
            specs[key] = NonTensor(entry.batch_size, entry.device, example_data=example)
        elif is_tensor_collection(entry):
            specs[key] = make_composite_from_td(entry, unsqueeze_null_shapes=unsqueeze_null_shapes)
        else:
            shape = entry.shape or ((1,) if unsqueeze_null_shapes else ())
            specs[key] = Unbounded(shape, entry.device, entry.dtype)
    data_cls = type(data) if is_tensorclass(data) else None  # other classes, such as lazy stacks, are TensorDicts
    return Composite(specs, shape=data.batch_size, device=data.device, data_cls=data_cls)


# ruff: noqa: SLF001  specs work on each other's private parts


def stack(specs: Sequence[TensorSpec], dim: int = 0) -> Any:
    """Stack specs: equal ones become one with another dimension, others a `Stacked`.

    Raises:
        SpecError: If there is nothing to stack, something is no spec, or the specs cannot stand side by side.
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
        SpecError: If tensors differ in shape and `dim` is not the first dimension.
    """
    first = values[0]
    if not isinstance(first, Tensor):
        if not isinstance(first, TensorDictBase) or is_non_tensor(first):
            return torch.stack(list(values), dim)
        if any(value.device != first.device for value in values):  # a lazy stack has one device, or none
            values = [value.copy().clear_device_() for value in values]
        return LazyStackedTensorDict.lazy_stack(list(values), dim)
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
    """Specs that differ side by side along a new dimension, as ``torch.stack`` returns them.

    Where the shapes differ, `shape` has a -1. Values of composites are lazy stacks of TensorDicts, which may differ in
    keys; ``stacked[key]`` stacks the entries of one key. Numpy values are lists along the dimension.

    Args:
        specs: Specs, at least one, with the same number of dimensions, all of tensors of one dtype or all composites.
        dim: New dimension.

    Raises:
        SpecError: If the specs cannot stand side by side.

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
        """Return the keys that all composites have."""
        self._need_keys()
        lists = [spec.keys(include_nested, leaves_only) for spec in self.specs]  # pyright: ignore[reportAttributeAccessIssue]  # checked
        return [key for key in lists[0] if all(key in other for other in lists[1:])]

    def get(self, key: NestedKey, default: Any = _MISSING) -> Any:
        """Return the entries of one key, stacked.

        Raises:
            SpecKeyError: If a composite does not have it, and there is no default.
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
        """Return the slices of a value, and how many dimensions it has before those of the spec."""
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
        """Return the values of the specs, a sequence along the dimension or an array, as one value."""
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
        for dim in range(positions.ndim):  # find the dimension along which the specs differ
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


Sizes = Mapping[NestedKey, torch.Size]


def group_sizes(specs: Iterable[Composite]) -> dict[NestedKey, torch.Size]:
    """Return the shapes of nested specs that are longer than the shape of the outermost one, by key.

    Args:
        specs: Specs of the same batch.

    Example:
        >>> from rl.core.specs import Unbounded
        >>> group_sizes([Composite(agents=Composite(reward=Unbounded((3, 1)), shape=(3,)))])
        {'agents': torch.Size([3])}
    """
    found: dict[NestedKey, torch.Size] = {}
    for spec in specs:
        for key in spec.keys(include_nested=True):
            inner = spec[key]
            if isinstance(inner, Composite) and len(inner.shape) > len(spec.shape):
                found[unwrap(as_tuple(key))] = inner.shape
    return found


def set_group_sizes(tensordict: TensorDictBase, sizes: Sizes, time: int | None = None) -> None:
    """Give groups that were assembled from leaves their batch sizes, in place.

    A group with an entry that has not these dimensions, which a policy may have written, stays as it is.

    Args:
        tensordict: Entries of the specs.
        sizes: Result of `group_sizes`.
        time: Dimension of `tensordict` that the specs do not have; None if there is none.

    Example:
        >>> from tensordict import TensorDict
        >>> steps = TensorDict({("agents", "reward"): torch.zeros(8, 3, 1)}, batch_size=[8])
        >>> set_group_sizes(steps, {"agents": torch.Size([3])}, time=0)
        >>> steps["agents"].batch_size
        torch.Size([8, 3])
    """
    for key, size in sizes.items():
        group = tensordict.get(key, None)
        wanted = size if time is None else torch.Size((*size[:time], tensordict.shape[time], *size[time:]))
        if isinstance(group, TensorDictBase) and all(leaf.shape[: len(wanted)] == wanted for leaf in _leaves(group)):
            names = [*tensordict.names, *[None] * (len(wanted) - tensordict.ndim)]
            group.batch_size = wanted
            if time is not None:
                group.names = names


def _leaves(group: TensorDictBase) -> Iterable[Any]:
    """Return the entries of a group, also of nested ones, that do not change their shape with it."""
    entries: Any = group.values(include_nested=True, leaves_only=True, is_leaf=_is_fixed)
    return entries


def _is_fixed(kind: type) -> bool:
    return not issubclass(kind, TensorDict)  # a lazy stack has the shape of its parts


class _OfDomain(ABCMeta):
    """A class whose instances are the instances of its base class with values of one domain."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        base: Any = cls.__base__
        discrete = cls.__name__.endswith("Discrete")
        parameters = signature(base)
        if not kwargs.keys() <= parameters.parameters.keys():
            return base(*args, **kwargs)  # raises the error about the arguments
        given = parameters.bind(*args, **kwargs)
        if discrete and given.arguments.get("dtype") is None:
            given.arguments["dtype"] = torch.int64
        spec = base(*given.args, **given.kwargs)
        if not isinstance(spec, cls):
            other = cls.__name__.removesuffix("Discrete" if discrete else "Continuous")
            other += "Continuous" if discrete else "Discrete"
            raise SpecError(f"{cls.__name__} holds no values of {spec.dtype}: use {other}, or another dtype")
        return spec

    def __instancecheck__(cls, instance: Any) -> bool:
        domain = "discrete" if cls.__name__.endswith("Discrete") else "continuous"
        return isinstance(instance, cast("type", cls.__base__)) and instance.domain == domain


class UnboundedContinuous(Unbounded, metaclass=_OfDomain):
    """`Unbounded` of a float dtype; creates an `Unbounded`.

    Example:
        >>> spec = UnboundedContinuous(3)
        >>> type(spec).__name__, isinstance(spec, UnboundedContinuous), isinstance(spec, UnboundedDiscrete)
        ('Unbounded', True, False)
    """


class UnboundedDiscrete(Unbounded, metaclass=_OfDomain):
    """`Unbounded` of an integer dtype or bool; creates an `Unbounded`, of int64 by default.

    Example:
        >>> UnboundedDiscrete(3).dtype
        torch.int64
    """


class BoundedContinuous(Bounded, metaclass=_OfDomain):
    """`Bounded` of a float dtype; creates a `Bounded`.

    Example:
        >>> BoundedContinuous(-1.0, 1.0, (3,)) == Bounded(-1.0, 1.0, (3,))
        True
    """


class BoundedDiscrete(Bounded, metaclass=_OfDomain):
    """`Bounded` of an integer dtype or bool; creates a `Bounded`, of int64 by default.

    Example:
        >>> BoundedDiscrete(0, 4).cardinality()
        5
    """


StackedComposite = Stacked
"""`Stacked`, whose values are TensorDicts where it stacks composites."""
