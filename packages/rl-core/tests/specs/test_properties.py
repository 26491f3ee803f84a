"""What holds for every spec, on specs that hypothesis makes up."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import is_non_tensor, is_tensor_collection

from rl.core.errors import SpecError
from rl.core.specs import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    NonTensor,
    OneHot,
    Stacked,
    Unbounded,
)
from rl.testing import check_spec

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
few = settings(max_examples=30, deadline=None, derandomize=True)

sizes = st.integers(1, 3)
shapes = st.lists(sizes, max_size=3).map(tuple)
nvecs = st.lists(st.integers(1, 4), min_size=1, max_size=3)


@st.composite
def unbounded(draw, shape=shapes):
    return Unbounded(draw(shape), dtype=draw(st.sampled_from([*FLOATS, *INTEGERS, torch.bool])))


def _ends(draw, dtype, count):
    if dtype.is_floating_point:
        width = {torch.float64: 64, torch.float32: 32}.get(dtype, 16)
        largest = torch.finfo(dtype).max if width > 16 else 60000.0
        number = st.floats(-largest, largest, width=width) | st.sampled_from([-math.inf, math.inf, -1.0, 1.0])
        return [draw(number) for _ in range(count)]
    info = torch.iinfo(dtype)
    number = st.integers(info.min, info.max) | st.sampled_from([info.min, info.max])
    return [draw(number) for _ in range(count)]


@st.composite
def bounded(draw, shape=shapes):
    size, dtype = draw(shape), draw(st.sampled_from([torch.float32, torch.float64, torch.float16, *INTEGERS]))
    count = math.prod(size)
    a, b = (torch.tensor(_ends(draw, dtype, count), dtype=dtype).reshape(size) for _ in range(2))
    low, high = torch.minimum(a, b), torch.maximum(a, b)
    if dtype.is_floating_point:  # an interval of infinities only is empty of finite numbers
        low, high = torch.where(low == math.inf, 0, low), torch.where(high == -math.inf, 0, high)
    if draw(st.booleans()) and count:
        low, high = low.min().item(), high.max().item()
    return Bounded(low, high, shape=size, dtype=dtype)


def _mask(draw, lead, sizes):
    """A mask over choices of `sizes` classes each that leaves at least one of each."""
    if not draw(st.booleans()):
        return None
    rows = []
    for _ in range(math.prod(lead)):
        row = []
        for n in sizes:
            part = [draw(st.booleans()) for _ in range(n)]
            part[draw(st.integers(0, n - 1))] = True
            row += part
        rows.append(row)
    return torch.tensor(rows).reshape(*lead, sum(sizes))


small = st.lists(sizes, max_size=2).map(tuple)
any_dtype = st.sampled_from([torch.int64, torch.int8, torch.uint8, torch.float32])


@st.composite
def categorical(draw, shape=small):
    n, size = draw(st.integers(1, 4)), draw(shape)
    return Categorical(n, size, dtype=draw(any_dtype), mask=_mask(draw, size, [n]))


@st.composite
def one_hot(draw, shape=small):
    n, lead = draw(st.integers(1, 4)), draw(shape)
    dtype = draw(any_dtype | st.just(torch.bool))
    return OneHot(n, (*lead, n), dtype=dtype, mask=_mask(draw, lead, [n]))


@st.composite
def multi_categorical(draw, shape=small):
    nvec, lead = draw(nvecs), draw(shape)
    mask = _mask(draw, lead, nvec)
    return MultiCategorical(nvec, (*lead, len(nvec)), dtype=draw(any_dtype), mask=mask)


@st.composite
def multi_one_hot(draw, shape=small):
    nvec, lead = draw(nvecs), draw(shape)
    mask = _mask(draw, lead, nvec)
    return MultiOneHot(nvec, (*lead, sum(nvec)), dtype=draw(any_dtype | st.just(torch.bool)), mask=mask)


@st.composite
def binary(draw, shape=small):
    return Binary(shape=draw(shape), dtype=draw(any_dtype | st.just(torch.bool)))


@st.composite
def non_tensor(draw, shape=small):
    return NonTensor(draw(shape), example_data=draw(st.text(max_size=3)))


TENSORS = {
    "unbounded": unbounded,
    "bounded": bounded,
    "categorical": categorical,
    "one-hot": one_hot,
    "multi-categorical": multi_categorical,
    "multi-one-hot": multi_one_hot,
    "binary": binary,
}
DISCRETE = ["categorical", "one-hot", "multi-categorical", "multi-one-hot"]


def leaves_under(shape):
    """Leaves whose shapes start with `shape`."""
    longer = st.lists(sizes, max_size=1).map(lambda more: (*shape, *more))
    return st.one_of(*[make(longer) for make in TENSORS.values()], non_tensor(longer))


@st.composite
def composite(draw, shape=small, depth=1):
    size = draw(shape)
    entries = draw(st.dictionaries(st.sampled_from("abc"), leaves_under(size), max_size=2))
    if depth and draw(st.booleans()):
        entries["deep"] = draw(composite(st.just(size), depth=0))
    return Composite(entries, shape=size)


@st.composite
def stacked(draw):
    kind = draw(st.sampled_from(["boxes", "ragged", "keys", "classes"]))
    dim = draw(st.integers(0, 1))
    return {
        "boxes": Stacked(Bounded(0, 1, (2, 3)), Unbounded((2, 3)), dim=dim),
        "ragged": Stacked(Unbounded((2,)), Unbounded((3,))),
        "keys": Stacked(Composite(a=Unbounded(2)), Composite(b=Categorical(3), a=Unbounded(4))),
        "classes": Stacked(OneHot(3, (2, 3)), OneHot(3, (2, 3), mask=torch.tensor([True, False, True])), dim=dim),
    }[kind]


ALL = {**TENSORS, "non-tensor": non_tensor, "composite": composite, "stacked": stacked}
every_kind = pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in ALL.items()])
every_tensor = pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in TENSORS.items()])


@every_kind
@few
@given(data=st.data())
def test_conformance(make, data):
    check_spec(data.draw(make()), draws=1)


def arbitrary(data, spec):
    """Any tensor of the shape and dtype of a spec."""
    count = math.prod(spec.shape)
    if spec.dtype.is_floating_point:
        number = st.floats(width=64) | st.sampled_from([0.0, 1.0, 2.0, math.nan, math.inf, -math.inf])
    elif spec.dtype is torch.bool:
        number = st.booleans()
    else:
        info = torch.iinfo(spec.dtype)
        number = st.integers(info.min, info.max) | st.integers(0, 3)
    values = data.draw(st.lists(number, min_size=count, max_size=count))
    return (
        torch.tensor(values, dtype=torch.float64 if spec.dtype.is_floating_point else spec.dtype)
        .to(spec.dtype)
        .reshape(spec.shape)
    )


def same(a, b):
    return (
        a.dtype is b.dtype and torch.equal(a.nan_to_num(12345), b.nan_to_num(12345))
        if a.is_floating_point()
        else torch.equal(a, b)
    )


@every_tensor
@few
@given(data=st.data())
def test_projection_lands_in_the_spec_and_stays(make, data):
    spec = data.draw(make())
    value = arbitrary(data, spec)
    before = value.clone()
    projected = spec.project(value)
    spec.assert_is_in(projected)
    assert same(spec.project(projected), projected)
    assert same(value, before)
    if spec.is_in(value):
        assert same(projected, value)


@every_tensor
@few
@given(data=st.data())
def test_membership_of_a_batch_is_that_of_its_elements(make, data):
    spec = data.draw(make())
    values = [arbitrary(data, spec) for _ in range(2)]
    assert spec.is_in(torch.stack(values)) == all(spec.is_in(value) for value in values)


@pytest.mark.parametrize("name", DISCRETE)
@few
@given(data=st.data())
def test_one_hot_and_categorical_forms_translate(name, data):
    spec = data.draw(TENSORS[name]())
    value = spec.rand((2,))
    hot, code = spec.to_one_hot(value), spec.to_categorical(value)
    hot_spec, code_spec = spec.to_one_hot_spec(), spec.to_categorical_spec()
    hot_spec.assert_is_in(hot.to(hot_spec.dtype))
    code_spec.assert_is_in(code.to(code_spec.dtype))
    assert torch.equal(hot_spec.to_categorical(hot.to(hot_spec.dtype)), code.long())
    assert torch.equal(code_spec.to_one_hot(code.to(code_spec.dtype)), hot.bool())
    assert hot_spec.cardinality() == code_spec.cardinality() == spec.cardinality()


@pytest.mark.parametrize("name", DISCRETE)
@few
@given(data=st.data())
def test_index_picks_what_the_one_hot_form_marks(name, data):
    spec = data.draw(TENSORS[name]())
    value = spec.rand((2,))
    hot = spec.to_one_hot(value).bool()
    scores = torch.randn(hot.shape)
    picked = spec.index(value, scores)
    assert torch.equal(picked.flatten(), scores[hot])


@pytest.mark.parametrize("name", [*DISCRETE, "binary"])
@few
@given(data=st.data())
def test_enumerate_lists_each_value_once(name, data):
    spec = data.draw(TENSORS[name](small))
    if spec.cardinality() > 300:
        return
    values = spec.enumerate()
    assert values.shape == (spec.cardinality(), *spec.shape)
    assert values.dtype is spec.dtype
    assert len(values.reshape(len(values), -1).unique(dim=0)) == spec.cardinality()
    spec.assert_is_in(values)


# ---------------------------------------------------------------------- shape algebra against torch


@st.composite
def operation(draw, shape, only=None):
    """A shape operation and its arguments that fit `shape`."""
    ndim, count = len(shape), math.prod(shape)
    dims = st.integers(-ndim, ndim - 1) if ndim else st.nothing()
    options = ["unsqueeze", "squeeze", "expand", "reshape", "clone", "flatten"]
    options += ["unbind", "squeeze-dim", "index", "unflatten"] if ndim else []
    name = draw(st.sampled_from([name for name in options if only is None or name in only]))
    if name == "unsqueeze":
        return name, (draw(st.integers(-ndim - 1, ndim)),)
    if name == "expand":
        kept = [draw(st.sampled_from([-1, size] if size > 1 else [-1, 1, 4])) for size in shape]
        return name, ((*draw(st.lists(sizes, max_size=2)), *kept),)
    if name == "reshape":
        divisor = draw(st.sampled_from([d for d in range(1, count + 1) if count % d == 0]))
        return name, draw(st.sampled_from([(divisor, -1), (divisor, count // divisor), (-1,), (1, divisor, -1)]))
    if name == "squeeze-dim":
        return "squeeze", (draw(dims),)
    if name == "unbind":
        return name, (draw(dims),)
    if name == "flatten" and ndim:
        start = draw(st.integers(0, ndim - 1))
        return name, (start, draw(st.integers(start, ndim - 1)))
    if name == "unflatten":
        dim = draw(dims)
        return name, (dim, draw(st.sampled_from([(-1, 1), (shape[dim], 1), (1, shape[dim])])))
    if name == "index":
        return "__getitem__", (draw(index(shape)),)
    return name, ()


@st.composite
def index(draw, shape):
    entries = []
    for size in shape[: draw(st.integers(0, len(shape)))]:
        kind = draw(st.sampled_from(["int", "slice", "list", "none-and-slice", "bools"]))
        if kind == "int":
            entries.append(draw(st.integers(-size, size - 1)))
        elif kind == "slice":
            entries.append(slice(draw(st.integers(0, size - 1)), None, draw(st.integers(1, 2))))
        elif kind == "list":
            entries.append([draw(st.integers(0, size - 1))])
        elif kind == "bools":
            entries.append(torch.ones(size, dtype=torch.bool))
        else:
            entries += [None, slice(None)]
    if sum(isinstance(entry, torch.Tensor) for entry in entries) > 1:
        entries = [slice(None) if isinstance(entry, torch.Tensor) else entry for entry in entries]
    if draw(st.booleans()):
        entries.insert(0, ...) if len([e for e in entries if e is not None]) == len(shape) else entries.append(...)
    return tuple(entries)


def apply(name, args, thing):
    out = getattr(thing, name)(*args)
    return list(out) if isinstance(out, tuple | list) else [out]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_parameters_move_as_torch_moves_them(data):
    shape = data.draw(shapes)
    low = torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)
    name, args = data.draw(operation(shape))
    spec = Bounded(low, low + 0.5)
    for changed, moved in zip(apply(name, args, spec), apply(name, args, low), strict=True):
        assert torch.equal(changed.low, moved)
        assert torch.equal(changed.high, moved + 0.5)
        assert changed.shape == moved.shape


@pytest.mark.parametrize("name", [*DISCRETE, "composite"])
@settings(max_examples=50, deadline=None, derandomize=True)
@given(data=st.data())
def test_leading_dimensions_move_as_torch_moves_them(name, data):
    shape = data.draw(st.lists(sizes, min_size=1, max_size=2).map(tuple))
    spec = data.draw(ALL[name](st.just(shape)))
    # The other operations name all dimensions, those that encode a value too: see the test above.
    only = {"unbind", "index", "flatten", "unflatten", "clone"} if spec.shape != shape else None
    operation_name, args = data.draw(operation(shape, only=only))
    if only and operation_name != "__getitem__" and args:
        args = (args[0] % len(shape), *args[1:])
    if only and operation_name == "__getitem__":
        args = (tuple(entry for entry in args[0] if entry is not ...),)
    carrier = torch.zeros(spec.shape)
    for changed, moved in zip(apply(operation_name, args, spec), apply(operation_name, args, carrier), strict=True):
        assert changed.shape == moved.shape
        value = changed.rand()
        assert (value.batch_size if is_tensor_collection(value) else value.shape) == moved.shape
        changed.assert_is_in(value)


@every_kind
@few
@given(data=st.data())
def test_stack_of_equal_specs_is_the_spec_with_one_more_dimension(make, data):
    spec = data.draw(make())
    both = torch.stack([spec, spec.clone()])
    assert type(both) is type(spec)
    assert both.shape == (2, *spec.shape)
    assert list(both.unbind()) == [spec, spec]


@few
@given(a=bounded(st.just((2, 3))), b=bounded(st.just((2, 3))), dim=st.integers(-3, 2))
def test_stack_and_unbind_of_different_specs_are_inverse(a, b, dim):
    if a.dtype is not b.dtype:
        with pytest.raises(SpecError, match=rf"one dtype.*{a.dtype}.*{b.dtype}"):
            torch.stack([a, b], dim)
        return
    both = torch.stack([a, b], dim)
    assert both.shape == torch.stack([torch.zeros(2, 3)] * 2, dim).shape
    assert list(both.unbind(dim)) == [a, b]
    assert isinstance(both, Bounded if a == b else Stacked)


@few
@given(spec=composite(), other=composite())
def test_equality_is_that_of_the_content(spec, other):
    assert spec == spec.clone()
    assert (spec == other) == (repr(spec) == repr(other) and _numbers(spec) == _numbers(other))


def _numbers(spec):
    """All parameters as plain data."""
    found = []
    for key, leaf in sorted(spec.items(include_nested=True, leaves_only=True), key=str):
        parts = [leaf.low, leaf.high] if isinstance(leaf, Bounded) else [getattr(leaf, "mask", None)]
        found.append((key, [None if part is None else part.tolist() for part in parts]))
    return found


@few
@given(data=st.data())
def test_a_generator_makes_draws_repeatable(data):
    spec = data.draw(composite() | stacked())
    first, second = (spec.rand(generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert _plain(spec, first) == _plain(spec, second)


def _plain(spec, value):
    def plain(item):
        if isinstance(item, dict):
            return {key: plain(part) for key, part in item.items()}
        if isinstance(item, list):
            return [plain(part) for part in item]
        return item.tolist() if isinstance(item, np.ndarray | np.generic) else item

    assert is_tensor_collection(value) or isinstance(value, torch.Tensor) or is_non_tensor(value)
    return plain(spec.to_numpy(value))
