"""Conformance of a spec."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, is_non_tensor, is_tensor_collection
from torch import Tensor

from rl.core.errors import SpecError
from rl.core.specs import TensorSpec
from rl.testing._report import fail, naming


def check_spec(spec: TensorSpec, *, draws: int = 3) -> None:
    """Show that a spec keeps to what every spec promises.

    Draws are in the spec and of its shape; projecting and encoding leave them as they are; the shape algebra agrees
    with torch on draws; copies are equal; discrete specs list all their values.

    Args:
        spec: Spec to check; not changed.
        draws: Number of random values.

    Raises:
        CheckError: An `AssertionError` that says what is wrong.

    Example:
        >>> from rl.core.specs import Bounded
        >>> check_spec(Bounded(-1, 1, shape=(2,)))
    """
    with naming(type(spec).__name__):
        for _ in range(draws):
            _check_values(spec)
        _check_copies(spec)
        _check_algebra(spec)
        _check_slices(spec)
        if spec.cardinality() <= 1000:
            _check_enumerate(spec)


def _shape(value: Any) -> torch.Size:
    if is_tensor_collection(value):
        return value.batch_size
    return value.shape if isinstance(value, Tensor) else torch.Size(())


def _fits(shape: torch.Size, expected: torch.Size) -> bool:
    return len(shape) == len(expected) and all(
        b in {-1, a} or not isinstance(a, int) for a, b in zip(shape, expected, strict=True)
    )


def _equal(a: Any, b: Any) -> bool:
    """Whether two values are the same, NaN included."""
    if is_non_tensor(a):
        return is_non_tensor(b) and a.tolist() == b.tolist()
    if isinstance(a, LazyStackedTensorDict):
        return all(_equal(x, y) for x, y in zip(a.unbind(a.stack_dim), b.unbind(a.stack_dim), strict=True))
    if is_tensor_collection(a):
        keys = set(a.keys())
        return keys == set(b.keys()) and all(_equal(a.get(key), b.get(key)) for key in keys)
    if not isinstance(a, Tensor):
        return bool(a == b)
    if a.is_nested:
        return all(_equal(x, y) for x, y in zip(a.unbind(), b.unbind(), strict=True))
    return a.dtype is b.dtype and torch.equal(a, b)


def _check_values(spec: TensorSpec) -> None:
    name = repr(spec)
    value = spec.rand()
    if not _fits(_shape(value), spec.shape):
        fail(f"rand() has shape {_shape(value)}, not that of {name}")
    if not spec.is_in(value):
        fail(f"rand() returned {value!r}, which is not in {name}")
    spec.assert_is_in(value)
    if not _equal(spec.project(value), value):
        fail(f"project() changed {value!r}, which is in {name}")
    there_and_back = spec.encode(spec.to_numpy(value))
    if not _equal(there_and_back, value):
        fail(f"encode(to_numpy(x)) is {there_and_back!r} for x = {value!r} of {name}")
    if spec.dtype is not None and spec.is_in(object()):
        fail(f"an object() is in {name}")
    _check_forms(spec, name)


def _check_forms(spec: TensorSpec, name: str) -> None:
    for make in (spec.zero, spec.one):
        form = make()
        if not _fits(_shape(form), spec.shape):
            fail(f"{make.__name__}() has shape {_shape(form)}, not that of {name}")
    if -1 not in spec.shape:
        many = spec.rand((2, 1))
        expected = torch.Size((2, 1)) + spec.shape
        if _shape(many) != expected:
            fail(f"rand((2, 1)) has shape {_shape(many)}, not {expected}")
        if not spec.is_in(many):
            fail(f"rand((2, 1)) returned {many!r}, which is not in {name}")


def _check_copies(spec: TensorSpec) -> None:
    copies = {"clone()": spec.clone(), "deepcopy": copy.deepcopy(spec), "pickle": pickle.loads(pickle.dumps(spec))}
    for how, other in copies.items():
        if other != spec:
            fail(f"{how} of {spec!r} is not equal to it: {other!r}")
    if spec == object():
        fail(f"{spec!r} is equal to an object()")
    if spec.device is not None and spec.to(spec.device) != spec:
        fail(f"to({spec.device}) changed {spec!r}")


def _agree(spec: TensorSpec, changed: TensorSpec, expected: torch.Size, what: str) -> None:
    if changed.shape != expected:
        fail(f"{what} of {spec!r} has shape {changed.shape}, torch returns {expected}")
    value = changed.rand()
    if not changed.is_in(value):
        fail(f"after {what}, rand() returned {value!r}, which is not in {changed!r}")


def _check_algebra(spec: TensorSpec) -> None:
    stacked: Any = torch.stack([spec, spec, spec], 0)  # pyright: ignore[reportArgumentType, reportCallIssue]  # specs are stacked as tensors are
    parts = stacked.unbind(0)
    if not all(part == spec for part in parts):
        fail(f"unbind(stack) of {spec!r} returned {parts!r}")
    if stacked[1] != spec:
        fail(f"stack(...)[1] of {spec!r} returned {stacked[1]!r}")
    if -1 in spec.shape:
        return
    value = spec.rand()
    if is_non_tensor(value) or not hasattr(value, "shape"):
        carrier = torch.zeros(spec.shape)
    else:
        carrier = torch.zeros(_shape(value))
    lead = carrier.unsqueeze(0).expand(3, *carrier.shape)
    _agree(spec, stacked, lead.shape, "stack")
    _agree(spec, spec.expand(3, *spec.shape), lead.shape, "expand")
    _agree(spec, spec.unsqueeze(0), carrier.unsqueeze(0).shape, "unsqueeze(0)")
    if spec.unsqueeze(0).squeeze(0) != spec:
        fail(f"squeeze(unsqueeze) of {spec!r} is not equal to it")
    six = spec.expand(2, 3, *spec.shape)
    grid = carrier.expand(2, 3, *carrier.shape)
    _agree(spec, six.flatten(0, 1), grid.flatten(0, 1).shape, "flatten(0, 1)")
    _agree(spec, six.reshape(3, 2, *spec.shape), grid.reshape(3, 2, *carrier.shape).shape, "reshape")
    if six.flatten(0, 1).unflatten(0, (2, 3)) != six:
        fail(f"unflatten(flatten) of {six!r} is not equal to it")
    _agree(spec, six[:, 1:], grid[:, 1:].shape, "[:, 1:]")
    _agree(spec, six[0, [2, 0]], grid[0, [2, 0]].shape, "[0, [2, 0]]")


def _check_slices(spec: TensorSpec) -> None:
    """Check that stacked samples of the slices are in the spec."""
    try:
        parts = spec.unbind(0)
    except SpecError:  # there is no dimension to slice, or it encodes a value
        return
    if parts and -1 not in spec.shape:
        drawn = [part.rand() for part in parts]
        for part, value in zip(parts, drawn, strict=True):
            shape = _shape(value)
            if shape != part.shape:
                fail(f"slices of {spec!r} of shape {part.shape} draw values of shape {shape}")
        value = _stack(drawn)
        if not spec.is_in(value):
            fail(f"draws of the slices of {spec!r}, stacked, are not in it: {value!r}")


def _check_enumerate(spec: TensorSpec) -> None:
    values = spec.enumerate()
    if len(values) != spec.cardinality():
        fail(f"enumerate() of {spec!r} returned {len(values)} values, the cardinality is {spec.cardinality()}")
    for value in values.unbind(0):
        if not spec.is_in(value):
            fail(f"enumerate() returned {value!r}, which is not in {spec!r}")


def _stack(values: list[Any]) -> Any:
    """Stack values along a new first dimension: lazily if they are TensorDicts, nested if tensors differ in shape."""
    first = values[0]
    if is_tensor_collection(first) and not is_non_tensor(first):
        return LazyStackedTensorDict.lazy_stack(values, 0)
    if not isinstance(first, Tensor) or all(value.shape == first.shape for value in values):
        return torch.stack(values)
    return torch.nested.nested_tensor(values, layout=torch.jagged)
