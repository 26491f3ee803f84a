"""`Composite`: a tree of specs, the spec of a TensorDict."""

# ruff: noqa: SLF001  specs work on each other's private parts

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from math import prod
from textwrap import indent
from typing import Any, Self

import torch
from tensordict import NonTensorData, TensorDict, TensorDictBase, is_non_tensor, is_tensor_collection, is_tensorclass
from torch import Tensor

from rl.core.arguments import foreign_arguments
from rl.core.errors import SpecError, SpecKeyError
from rl.core.keys import NestedKey, as_tuple, key_str, nearest, unwrap
from rl.core.specs._base import Device, Fault, Shape, TensorSpec
from rl.core.specs._nontensor import NonTensor
from rl.core.specs._shape import lead_size
from rl.core.specs._unbounded import Unbounded

__all__ = ["Composite", "make_composite_from_td"]

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
        specs: specs by key; a tuple is a path, a mapping becomes a nested composite, None is left out.
        shape: leading dimensions that all specs share; none if None.
        device: where values live; None leaves each where its own spec says.
        data_cls: Class of the values, such as a tensorclass: draws have it, and no value of another class is in the
            spec; any TensorDict if None.
        kwargs: further specs by key.

    Raises:
        SpecError: if a spec does not start with `shape`.

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
        """Refuse changes here and in nested composites, so that cached keys stay valid."""
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
        """The spec as it can stand under `key`."""
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
        """Put a spec under a key; a path makes the nested composites that it needs, None removes the entry."""
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
            self._specs[first] = child  # only now: if the spec is refused, nothing is left behind
        else:
            self._specs[first] = self._adopt(first, spec)
        return self

    def get(self, key: NestedKey, default: Any = _MISSING) -> Any:
        """The spec under a key.

        Raises:
            SpecKeyError: if there is none, and no default.
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
        """The keys, as TensorDict lists them.

        Args:
            include_nested: those of nested composites too, as paths.
            leaves_only: not those of composites.
        """
        return _KeyList(key for key, _ in self.items(include_nested, leaves_only))

    def values(self, include_nested: bool = False, leaves_only: bool = False) -> list[TensorSpec]:  # noqa: FBT001, FBT002
        """The specs under `keys`."""
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
        """Same shape and device, no entries."""
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
        if is_tensorclass(value):  # whose `get` unwraps Python data
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
        """The TensorDict of a mapping with the same keys, no more and no fewer."""
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


@foreign_arguments(needless={"dynamic_shape": ("not available yet: a spec has one shape", False)})
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
