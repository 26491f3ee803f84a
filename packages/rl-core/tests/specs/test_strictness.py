"""Specs change no value silently, share no memory, and name faults."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rl.core.errors import ArgumentError, SpecError
from rl.core.specs import Binary, Bounded, Categorical, Composite, MultiCategorical, OneHot, Unbounded


@pytest.mark.parametrize(
    ("make", "text"),
    [
        pytest.param(lambda: Bounded(0, 300, (2,), dtype=torch.uint8), "not values of torch.uint8", id="end-wraps"),
        pytest.param(lambda: Bounded(0.5, 2, dtype=torch.int64), "not values of torch.int64", id="end-truncated"),
        pytest.param(lambda: Bounded(0, float("inf"), dtype=torch.int64), "not values", id="infinite-integer"),
        pytest.param(lambda: Bounded(0.5, 2).to(torch.int64), "not values of torch.int64", id="end-converted"),
        pytest.param(lambda: Categorical(3, dtype=torch.bool), "torch.bool cannot hold 3 classes", id="bool"),
        pytest.param(lambda: Categorical(300, dtype=torch.uint8), "cannot hold 300 classes, only 256", id="uint8"),
        pytest.param(lambda: Categorical(300).to(torch.int8), "cannot hold 300 classes, only 128", id="converted"),
        pytest.param(lambda: MultiCategorical([2, 300], dtype=torch.uint8), "cannot hold 300 classes", id="multi"),
    ],
)
def test_a_spec_that_could_not_hold_its_values_is_rejected(make, text):
    with pytest.raises(SpecError, match=text):
        make()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        pytest.param(lambda: Categorical(2.5), "Categorical: n must be an integer, got 2.5", id="fraction"),
        pytest.param(lambda: OneHot("3"), "OneHot: n must be an integer, got '3'", id="text"),
        pytest.param(lambda: MultiCategorical([2.5]), "must be integers", id="fraction-multi"),
        pytest.param(lambda: Unbounded((-1, 3)), "sizes are at least 0", id="negative-size"),
        pytest.param(lambda: Unbounded("ab"), "a shape is an integer or a sequence of integers", id="text-as-shape"),
        pytest.param(lambda: Unbounded(3, dtype="float32"), "needs a torch.dtype", id="text-as-dtype"),
    ],
)
def test_bad_sizes_and_dtypes_are_rejected(make, text):
    with pytest.raises(ArgumentError, match=text):
        make()


def test_integers_of_numpy_are_sizes():
    assert Unbounded(np.int64(3)).rand(np.int64(2)).shape == (2, 3)
    assert OneHot(np.int64(3)).shape == (3,)


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        pytest.param(Categorical(2), 1.7, id="fraction"),
        pytest.param(Unbounded(1, dtype=torch.uint8), np.array([300]), id="wraps"),
        pytest.param(Unbounded(1, dtype=torch.int64), np.array([np.nan]), id="nan"),
        pytest.param(Binary(1, dtype=torch.bool), [2], id="two-as-bool"),
        pytest.param(OneHot(3), 1.5, id="fraction-of-a-class"),
        pytest.param(Unbounded(2), None, id="none"),
        pytest.param(Unbounded(2), np.array(["a", "b"]), id="text"),
        pytest.param(Unbounded((2, 2)), [[1], [1, 2]], id="ragged"),
        pytest.param(Composite(a=Unbounded(2)), np.zeros(2), id="no-mapping"),
    ],
)
def test_encode_refuses_what_it_would_change(spec, value):
    with pytest.raises(SpecError, match="cannot encode"):
        spec.encode(value)


def test_encode_takes_a_bool_as_a_class():
    assert OneHot(2, dtype=torch.int64).encode(True).tolist() == [0, 1]
    assert OneHot(2, dtype=torch.int64).encode(False).tolist() == [1, 0]


def test_encode_takes_foreign_byte_order():
    assert Unbounded(2).encode(np.array([1, 2], dtype=">f4")).tolist() == [1, 2]


@pytest.mark.parametrize("spec", [Unbounded(2), OneHot(2)], ids=["unbounded", "one-hot"])
def test_encode_never_shares_memory(spec):
    value = spec.rand()
    assert spec.encode(value).data_ptr() != value.data_ptr()


@pytest.mark.parametrize(
    "copy", [lambda s: s.clone(), lambda s: s[0], lambda s: s.expand(2, 2, 3)], ids=["clone", "index", "expand"]
)
def test_copies_share_no_parameters(copy):
    bounded = Bounded(torch.zeros(2, 3), torch.ones(2, 3))
    masked = Categorical(3, (2, 3), mask=[True, False, True])
    low, mask = bounded.low.clone(), masked.mask.clone()
    copy(bounded).low.zero_().sub_(1)
    copy(masked).mask.zero_()
    assert torch.equal(bounded.low, low)
    assert torch.equal(masked.mask, mask)


def filled(shape, dtype, row, value):
    return torch.zeros(shape, dtype=dtype).index_fill(0, torch.tensor([row]), value)


@pytest.mark.parametrize(
    ("spec", "value", "text"),
    [
        (Bounded(0, 1, (84, 84)), filled((84, 84), torch.float32, 2, 3), r"got 3.0 at \(2, 0\), one of 84"),
        (Categorical(3, (500,)), filled(500, torch.int64, 499, 7), r"got 7 at \(499,\), one of 1"),
        (Bounded(0, 1, (2,)), torch.tensor([0.0, 3.0]), r"got \[0.0, 3.0\]"),
    ],
    ids=["bounded", "categorical", "small"],
)
def test_what_is_outside_is_shown(spec, value, text):
    with pytest.raises(SpecError, match=text):
        spec.assert_is_in(value)


@pytest.mark.parametrize(
    ("spec", "value", "numbers"),
    [
        pytest.param(OneHot(3), [[0, 0, 1]], torch.zeros(1, 5), id="other-classes"),
        pytest.param(Categorical(3), [0, 1], torch.zeros(5, 3), id="other-batch"),
        pytest.param(MultiCategorical([2, 3]), [0, 1], torch.zeros(4), id="multi"),
    ],
)
def test_index_needs_a_number_for_each_class(spec, value, numbers):
    with pytest.raises(SpecError, match="index needs"):
        spec.index(torch.tensor(value), numbers)


def test_a_refused_entry_leaves_nothing_behind():
    spec = Composite()
    with pytest.raises(SpecError, match="must be a spec"):
        spec.set(("a", "b"), 3)
    assert spec.keys(include_nested=True) == []
    with pytest.raises(SpecError, match="a key of Composite is a string or a tuple of strings, got 1"):
        Composite({1: Unbounded(3)})
