"""The names of specs that code from TorchRL uses."""

import copy
import pickle

import pytest
import torch

from rl.core.errors import ArgumentError, SpecError
from rl.core.specs import (
    Bounded,
    BoundedContinuous,
    BoundedDiscrete,
    Composite,
    Stacked,
    StackedComposite,
    Unbounded,
    UnboundedContinuous,
    UnboundedDiscrete,
)

I64 = torch.int64
CASES = [
    pytest.param(UnboundedContinuous, (3,), {}, Unbounded(3), id="unbounded-continuous"),
    pytest.param(UnboundedDiscrete, (3,), {}, Unbounded(3, dtype=I64), id="unbounded-discrete"),
    pytest.param(UnboundedDiscrete, (3, "cpu", torch.bool), {}, Unbounded(3, dtype=torch.bool), id="positional"),
    pytest.param(BoundedContinuous, (-1, 1), {"shape": (2,)}, Bounded(-1, 1, (2,)), id="bounded-continuous"),
    pytest.param(BoundedDiscrete, (0, 4), {"dtype": None}, Bounded(0, 4, dtype=I64), id="bounded-discrete"),
    pytest.param(
        BoundedContinuous, (0, 1), {"dtype": torch.float64}, Bounded(0, 1, dtype=torch.float64), id="bounded-double"
    ),
]


@pytest.mark.parametrize(("alias", "args", "kwargs", "spec"), CASES)
def test_an_alias_makes_the_spec_of_its_domain(alias, args, kwargs, spec):
    made = alias(*args, **kwargs)
    assert type(made) is type(spec)
    for one in (made, copy.deepcopy(made), pickle.loads(pickle.dumps(made)), made.clone()):
        assert one == spec
        assert isinstance(one, alias)
    assert made.is_in(made.rand((4,)))


def test_an_alias_tells_the_domains_apart():
    assert isinstance(Unbounded(), UnboundedContinuous)
    assert not isinstance(Unbounded(dtype=I64), UnboundedContinuous)
    assert not isinstance(Bounded(0, 1), UnboundedContinuous)
    assert isinstance(torch.stack([Composite(x=Unbounded(2)), Composite(x=Unbounded(3))]), StackedComposite)
    assert StackedComposite is Stacked


def test_a_dtype_of_the_other_domain_is_refused():
    with pytest.raises(SpecError, match=r"UnboundedContinuous holds no values of torch\.int64: use UnboundedDiscrete"):
        UnboundedContinuous(3, dtype=I64)
    with pytest.raises(SpecError, match=r"BoundedDiscrete holds no values of torch\.float32: use BoundedContinuous"):
        BoundedDiscrete(0, 1, dtype=torch.float32)


def test_the_default_dtype_is_followed():
    torch.set_default_dtype(torch.float64)
    try:
        assert UnboundedContinuous().dtype is BoundedContinuous(0, 1).dtype is torch.float64
        assert UnboundedDiscrete().dtype is I64
    finally:
        torch.set_default_dtype(torch.float32)


def test_arguments_of_others_are_answered_as_by_the_base_class():
    with pytest.raises(ArgumentError, match="use low="):
        BoundedContinuous(minimum=0, maximum=1)


@pytest.mark.parametrize("spec", [Unbounded(3), Composite(a=Bounded(0, 1, (2,)))])
def test_a_switch_of_a_cache_of_torchrl_changes_nothing(spec):
    value = spec.to_numpy(spec.zero())
    spec.memoize_encode()
    first = spec.encode(value)
    spec.memoize_encode(mode=False)
    spec.erase_memoize_cache()
    assert (spec.encode(value) == first).all()
    assert spec.encode(value) is not first
