"""Specs of Python objects, and the encoding of class numbers."""

import copy

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, TensorDict
from torch.testing import assert_close

from rl.core.errors import SpecError
from rl.core.specs import Bounded, Categorical, Choice, Composite, MultiOneHot, NonTensor, OneHot, Unbounded
from rl.testing import check_spec

OBJECTS = {
    "text": ("a", "b"),
    "tensor": (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0])),
    "tensor-of-another-shape": (torch.zeros(2), torch.zeros(3)),
    "tensor-and-number": (torch.zeros(2), 0),
    "array": (np.array([1, 2]), np.array([1, 3])),
    "empty-array": (np.zeros(0), np.zeros((0, 2))),
    "list-of-tensors": ([torch.zeros(2), {"x": torch.ones(2)}], [torch.zeros(2), {"x": torch.zeros(2)}]),
    "tensordict": (TensorDict(x=torch.zeros(2)), TensorDict(x=torch.ones(2))),
}


@pytest.mark.parametrize(("one", "other"), list(OBJECTS.values()), ids=list(OBJECTS))
def test_specs_of_any_object_can_be_compared(one, other):
    assert NonTensor(example_data=one) == NonTensor(example_data=copy.deepcopy(one))
    assert NonTensor(example_data=one) != NonTensor(example_data=other)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32], ids=str)
def test_a_tensor_of_class_numbers_is_encoded(dtype):
    spec = OneHot(3, dtype=dtype)
    for number in (torch.tensor(1), torch.tensor(1, dtype=torch.uint8), np.int64(1)):
        assert_close(spec.encode(number), spec.encode(1))
    assert_close(spec.expand(2, 3).encode(torch.tensor([2, 0])), spec.expand(2, 3).encode([2, 0]))
    assert_close(spec.encode(spec.encode(2)), spec.encode(2))
    with pytest.raises(SpecError, match="expected classes from 0 to 2, got 3"):
        spec.encode(torch.tensor(3))
    assert_close(spec.encode(torch.tensor([2, 0])), spec.encode([2, 0]))  # [2] does not end with the shape of a value
    both = MultiOneHot([2, 3])
    assert_close(both.encode(torch.tensor([1, 2])), both.encode([1, 2]))


def test_a_draw_takes_one_of_the_choices():
    torch.manual_seed(0)
    spec = Choice([Bounded(0, 1, shape=(2,)), Bounded(10, 11, shape=(2,))])
    drawn = torch.stack([spec.rand((50,)) for _ in range(200)])
    high = drawn >= 10
    assert (high.all((1, 2)) | ~high.any((1, 2))).all()  # each draw is of one choice
    assert 60 < high[:, 0, 0].sum() < 140
    assert spec.is_in(torch.tensor([10.5, 11.0]))
    assert not spec.is_in(torch.tensor([0.5, 10.5]))
    assert spec.project(torch.tensor([9.0, 12.0])).tolist() == [10.0, 11.0]
    words = Choice([NonTensorData(word) for word in ("left", "right")])
    assert {words.rand().data for _ in range(50)} == {"left", "right"}
    assert words.rand((3,)).batch_size == (3,)
    assert words.is_in(words.rand((3,)))
    assert words.enumerate().tolist() == ["left", "right"]
    assert not words.is_in(NonTensorData("up"))
    with pytest.raises(SpecError, match="expected one of its choices, got 'up'"):
        Composite(word=words).assert_is_in(TensorDict(word=NonTensorData("up")))
    with pytest.raises(SpecError, match="cannot project"):
        words.project(NonTensorData("up"))


@pytest.mark.parametrize(
    "spec",
    [
        Choice([Bounded(0, 1, shape=(2, 3)), Bounded(-3, -2, shape=(2, 3))]),
        Choice([Categorical(2, mask=[True, False]), Categorical(2, mask=[False, True])]),
        Choice([NonTensorData(word) for word in "ab"]),
        Composite(word=Choice([NonTensorData(word) for word in "ab"]), place=Unbounded(2)),
    ],
    ids=["tensors", "categorical", "objects", "composite"],
)
def test_choices_conform(spec):
    check_spec(spec)


@pytest.mark.parametrize(
    "choices",
    [
        [],
        ["left"],
        [Unbounded(1), Unbounded(2)],
        [Unbounded(1), Bounded(0, 1, shape=(1,))],
        [NonTensorData(0), Unbounded()],
    ],
    ids=["none", "text", "shapes", "classes", "kinds"],
)
def test_choices_of_different_forms_are_refused(choices):
    with pytest.raises(SpecError, match=r"Choice (needs|takes)"):
        Choice(choices)
