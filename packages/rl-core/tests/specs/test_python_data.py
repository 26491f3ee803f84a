"""Specs of Python objects, and the encoding of class numbers."""

import copy

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch.testing import assert_close

from rl.core.errors import SpecError
from rl.core.specs import NonTensor, OneHot

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
    with pytest.raises(SpecError, match=r"cannot encode"):
        spec.encode(torch.tensor([2, 0]))
