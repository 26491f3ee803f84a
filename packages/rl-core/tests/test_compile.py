"""`compile_with_warmup`."""

import copy
import pickle

import pytest
import torch
from torch import nn

from rl.core import compile_with_warmup
from rl.core.errors import RLError


class Spy:
    """A back end of torch.compile that counts its calls."""

    def __init__(self):
        self.compiled = 0

    def __call__(self, graph, example_inputs):
        self.compiled += 1
        return graph.forward


def test_the_first_calls_run_eagerly():
    spy = Spy()
    double = compile_with_warmup(lambda x: 2 * x, warmup=2, backend=spy)
    x = torch.arange(3.0)
    seen = []
    for _ in range(4):
        torch.testing.assert_close(double(x), 2 * x)
        seen.append(spy.compiled)
    assert seen == [0, 0, 1, 1]


def test_warmup_of_zero_compiles_at_once():
    spy = Spy()
    compile_with_warmup(lambda x: x + 1, warmup=0, backend=spy)(torch.ones(2))
    assert spy.compiled == 1


def test_as_a_decorator():
    spy = Spy()

    @compile_with_warmup(backend=spy)
    def triple(x, *, shift=0.0):
        return 3 * x + shift

    assert triple(torch.ones(1), shift=1.0) == triple(torch.ones(1), shift=1.0) == 4
    assert spy.compiled == 1


def test_a_module_stays_one_to_its_user():
    net = nn.Linear(2, 1)
    wrapped = compile_with_warmup(net, warmup=1, backend="eager")
    assert list(wrapped.parameters()) == list(net.parameters())
    assert wrapped.state_dict().keys() == net.state_dict().keys()
    wrapped.eval()
    assert not net.training
    wrapped.note = "kept"
    assert net.note == "kept"
    with pytest.raises(AttributeError, match="nothing"):
        _ = wrapped.nothing


def test_gradients_reach_the_parameters():
    net = nn.Linear(2, 1)
    wrapped = compile_with_warmup(net, warmup=1, backend="eager")
    x = torch.ones(3, 2)
    grads = []
    for _ in range(2):
        net.zero_grad()
        wrapped(x).sum().backward()
        grads.append(net.weight.grad.clone())
    torch.testing.assert_close(grads[0], grads[1])
    assert grads[0].abs().sum() > 0


def test_a_call_that_raises_is_no_warm_up():
    spy = Spy()
    add = compile_with_warmup(torch.add, warmup=1, backend=spy)
    with pytest.raises(TypeError):
        add("no tensor")
    add(torch.ones(1), 1)
    assert "1 of 1 warm-up calls" in repr(add)
    assert spy.compiled == 0


def test_it_can_be_copied_and_pickled():
    wrapped = compile_with_warmup(nn.Linear(2, 1), warmup=1, backend="eager")
    for other in (copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))):
        torch.testing.assert_close(other(torch.ones(1, 2)), wrapped(torch.ones(1, 2)))


def test_what_makes_no_sense_is_refused():
    with pytest.raises(RLError, match="warmup must be at least 0, got -1"):
        compile_with_warmup(torch.add, warmup=-1)
    with pytest.raises(RLError, match="got int, which cannot be called"):
        compile_with_warmup(3)


def test_a_function_keeps_its_name_and_its_object():
    class Scale:
        factor = 3

        @compile_with_warmup(warmup=1, backend="eager")
        def apply(self, x):
            """Multiply."""
            return self.factor * x

    scale = Scale()
    assert [scale.apply(torch.ones(1)).item() for _ in range(3)] == [3, 3, 3]
    assert (Scale.apply.__name__, Scale.apply.__doc__) == ("apply", "Multiply.")


def test_a_module_in_a_class_is_not_bound():
    class Holder:
        net = compile_with_warmup(nn.Linear(2, 1), backend="eager")

    assert Holder().net(torch.ones(2)).shape == (1,)


def test_a_warm_up_is_an_integer():
    with pytest.raises(RLError, match=r"warmup must be an integer, got 1.5"):
        compile_with_warmup(torch.add, warmup=1.5)
