"""Keys as arguments; integers as arguments and as sizes of specs."""

import numpy as np
import pytest
import torch

from rl.core.arguments import as_integer
from rl.core.errors import ArgumentError
from rl.core.keys import as_tuple, unwrap
from rl.core.specs import Binary, Categorical, MultiCategorical, OneHot, Unbounded

INTEGERS = [3, np.int64(3), np.uint8(3), np.array(3), torch.tensor(3), torch.tensor(3, dtype=torch.int8)]
OTHERS = [True, np.True_, torch.tensor(True), 3.0, np.float64(3), torch.tensor(3.0), torch.tensor([3]), "3", None, [3]]


@pytest.mark.parametrize("value", INTEGERS, ids=repr)
def test_every_kind_of_integer_becomes_one_of_python(value):
    found = as_integer(value, "MLP", "depth", least=3)
    assert type(found) is int
    assert found == 3
    for spec in (Categorical(value), OneHot(value), Binary(value), MultiCategorical([value, 2]), Unbounded((2, value))):
        assert all(type(size) is int for size in spec.shape)
        assert spec.is_in(spec.rand(value))
    assert type(OneHot(value).n) is int


@pytest.mark.parametrize("value", OTHERS, ids=repr)
def test_other_values_than_integers_are_rejected(value):
    with pytest.raises(ArgumentError, match="MLP: depth must be an integer, got"):
        as_integer(value, "MLP", "depth")
    for create in (Categorical, OneHot):
        with pytest.raises(ArgumentError, match="n must be an integer"):
            create(value)


def test_an_integer_below_the_least_is_rejected():
    with pytest.raises(ArgumentError, match="MLP: depth must be at least 0, got -1"):
        as_integer(np.int64(-1), "MLP", "depth", least=0)


@pytest.mark.parametrize("shape", [True, (2, True), 2.0, (2.0,)], ids=repr)
def test_other_values_than_sizes_are_rejected_as_a_shape(shape):
    with pytest.raises(ArgumentError, match="a shape is an integer or a sequence of integers"):
        Unbounded(shape)


@pytest.mark.parametrize("form", [as_tuple, unwrap])
@pytest.mark.parametrize("value", [3, None, 1.5])
def test_what_is_no_key_is_named(form, value):
    with pytest.raises(ArgumentError, match=f"a key is a string or a tuple of strings, got {value}"):
        form(value)
