"""Specs of Python objects, and the encoding of class numbers."""

import copy

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, TensorDict
from torch.testing import assert_close

from rl.core.errors import SpecError
from rl.core.specs import Choice, MultiOneHot, NonTensor, OneHot

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


@pytest.mark.parametrize("shape", [(), (2,)], ids=str)
def test_a_choice_of_non_tensor_data_holds_its_samples(shape):
    spec = Choice([NonTensorData(one, batch_size=shape) for one in ("left", "right")])
    for value in (spec.rand(), spec.enumerate()[1], NonTensorData("right", batch_size=shape)):
        assert spec.is_in(value)
    assert not spec.is_in(NonTensorData("up", batch_size=shape))
    assert spec.is_in(spec.expand(3, *shape).rand()[0])


def test_a_choice_of_arrays_holds_its_samples():
    spec = Choice([np.array([1, 2]), np.array([3, 4])])
    assert spec.is_in(spec.rand())
    assert not spec.is_in(NonTensorData(np.array([1, 4])))


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
