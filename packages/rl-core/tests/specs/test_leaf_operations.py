"""Leaf specs: the shape algebra, and what only specs with classes can do."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rl.core.errors import SpecError, SpecIndexError
from rl.core.specs import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    OneHot,
    Unbounded,
)

# ---------------------------------------------------------------------- algebra


@pytest.mark.parametrize(
    ("change", "text"),
    [
        pytest.param(lambda s: s.unsqueeze(-1), "dimension 1 of OneHot", id="unsqueeze"),
        pytest.param(lambda s: s.reshape(-1), "belongs to its values", id="reshape"),
        pytest.param(lambda s: s[..., 0], "belongs to its values", id="index"),
        pytest.param(lambda s: s.unbind(-1), "belongs to its values", id="unbind"),
        pytest.param(lambda s: torch.stack([s, s], -1), "belongs to its values", id="stack"),
        pytest.param(lambda s: s.expand(4, 3), r"expand\(4, 3\).*OneHot of shape \(2, 3\)", id="expand"),
        pytest.param(lambda s: s.reshape(5, 3), r"\(2, 3\) to \(5, 3\)", id="count"),
        pytest.param(lambda s: s[7], r"index 7 does not fit", id="out-of-range"),
        pytest.param(lambda s: s[0, 0, 0], "3 dimensions|does not fit 2 dimensions", id="too-many"),
        pytest.param(lambda s: s.squeeze(5), "no dimension 5", id="no-dimension"),
    ],
)
def test_classes_stay_where_they_are(change, text):
    with pytest.raises(SpecError, match=text):
        change(OneHot(3, (2, 3)))


def test_torch_functions_work_on_specs():
    spec = Bounded(torch.zeros(2, 3), torch.ones(2, 3))
    assert torch.unsqueeze(spec, 0).shape == (1, 2, 3)
    assert torch.flatten(spec).shape == (6,)
    assert torch.reshape(spec, (3, 2)).shape == (3, 2)
    assert torch.unbind(spec, 1)[0].shape == (2,)
    assert torch.squeeze(torch.unsqueeze(spec, 1)).shape == (2, 3)
    with pytest.raises(TypeError):
        torch.sum(spec)


@pytest.mark.parametrize("index", [5, (0, 0, 0)], ids=repr)
def test_an_index_out_of_range_is_also_an_index_error(index):
    with pytest.raises(IndexError, match="does not fit") as caught:
        Unbounded((2, 3))[index]
    assert isinstance(caught.value, SpecIndexError)


REVERSED = [
    np.s_[::-1],
    np.s_[:, ::-2],
    np.s_[::-1, ::-1],
    np.s_[2:0:-1, None, 1],
    np.s_[0:2:-1],
    np.s_[..., ::-1],
    np.s_[::-1, [0, 2], [1, 0]],
]


@pytest.mark.parametrize("index", REVERSED, ids=repr)
def test_slices_of_negative_step_are_those_of_numpy(index):
    low = np.arange(3 * 4 * 2, dtype=np.float32).reshape(3, 4, 2)
    found = Bounded(torch.from_numpy(low), 100.0)[index]
    np.testing.assert_array_equal(found.low.numpy(), low[index])


def test_a_stack_can_be_reversed_and_measured():
    stack = torch.stack([Unbounded(2), Bounded(0, 1, (2,))])
    assert stack[::-1].specs == stack.specs[::-1]
    assert len(stack) == 2
    assert torch.index_select(stack, 0, torch.tensor([1])) == stack[1:]


def test_ends_that_are_one_number_stay_one_number():
    spec = Bounded(0, 255, (84, 84, 3), dtype=torch.uint8).expand(64, 84, 84, 3)
    assert spec.low.untyped_storage().nbytes() == 1


def test_conversion_of_dtype_and_device():
    spec = Bounded(-1, 1, (2,)).to(torch.float64)
    assert spec.low.dtype is spec.dtype is torch.float64
    assert spec.rand().dtype is torch.float64
    assert spec.cpu() == spec
    assert OneHot(3, mask=torch.tensor([True, False, True])).to("meta").mask.device.type == "meta"


def test_specs_are_not_hashable():
    with pytest.raises(TypeError, match=r"unhashable"):
        hash(Unbounded())


# ---------------------------------------------------------------------- what only some can do


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param(Categorical(3, (2,)), 9, id="categorical"),
        pytest.param(OneHot(3, (2, 3)), 9, id="one-hot"),
        pytest.param(MultiCategorical([2, 3], (2, 2)), 36, id="multi-categorical"),
        pytest.param(Binary(3), 8, id="binary"),
        pytest.param(Bounded(0, 255, (1,), dtype=torch.uint8), 256, id="integers"),
        pytest.param(Bounded(0.0, 1.0), math.inf, id="box"),
        pytest.param(Unbounded(), math.inf, id="unbounded"),
        pytest.param(Composite(a=Categorical(2), b=Binary(2)), 8, id="composite"),
    ],
)
def test_cardinality_by_hand(spec, expected):
    assert spec.cardinality() == expected


def test_enumeration_by_hand():
    assert MultiCategorical([2, 2]).enumerate().tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert OneHot(2, dtype=torch.int64).enumerate().tolist() == [[1, 0], [0, 1]]
    assert Bounded(3, 5, dtype=torch.int64).enumerate().tolist() == [3, 4, 5]


@pytest.mark.parametrize("method", ["to_one_hot", "to_categorical", "update_mask"])
def test_specs_without_classes_say_so(method):
    with pytest.raises(SpecError, match=r"BoundedContinuous of shape \(2,\)"):
        getattr(Bounded(0, 1, (2,)), method)(torch.zeros(2))


def test_infinitely_many_values_are_not_listed():
    with pytest.raises(SpecError, match=r"UnboundedContinuous of shape .* infinitely many"):
        Unbounded().enumerate()
    with pytest.raises(SpecError, match=rf"{2**30} values"):
        Binary(30).enumerate()
    with pytest.raises(SpecError, match=r"does not choose"):
        Unbounded().index(torch.zeros(1), torch.zeros(1))


def test_conversions_refuse_what_is_not_in_the_spec():
    with pytest.raises(SpecError, match=r"got 3"):
        Categorical(3).to_one_hot(torch.tensor(3))
    with pytest.raises(SpecError, match=r"got .*1, 1"):
        OneHot(2, dtype=torch.int64).to_categorical(torch.tensor([1, 1]))
