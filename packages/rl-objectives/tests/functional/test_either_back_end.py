"""The functions that go through a back end: the same results, errors and gradients with each back end."""

import pytest
import torch
from torch.autograd import forward_ad

from rl.core.errors import ArgumentError, ShapeError

# plain torch is compared with the installed back end, which hides it
from rl.objectives.functional._recurrence import torch_recurrence
from rl.objectives.value import functional

SHAPE = (3, 6, 1)
VALUES = "rl.objectives.functional._recurrence.recurrence_backend"


def make(dtype=torch.float32):
    g = torch.Generator().manual_seed(0)
    names = ("state_value", "next_state_value", "reward", "log_pi", "log_mu")
    batch = {name: torch.randn(SHAPE, generator=g, dtype=dtype) for name in names}
    batch["done"] = torch.rand(SHAPE, generator=g) < 0.3
    batch["terminated"] = batch["done"] & (torch.rand(SHAPE, generator=g) < 0.5)
    return batch | {"gamma": 0.9, "lmbda": 0.8}


OUTCOME = ("reward", "done", "terminated")
READ = {
    "vec_generalized_advantage_estimate": ("gamma", "lmbda", "state_value", "next_state_value", *OUTCOME),
    "vec_td_lambda_return_estimate": ("gamma", "lmbda", "next_state_value", *OUTCOME),
    "vec_td1_return_estimate": ("gamma", "next_state_value", *OUTCOME),
    "vec_td_lambda_advantage_estimate": ("gamma", "lmbda", "state_value", "next_state_value", *OUTCOME),
    "vtrace_advantage_estimate": ("gamma", "lmbda", "log_pi", "log_mu", "state_value", "next_state_value", *OUTCOME),
    "reward2go": ("gamma", "reward", "done"),
}


def call(name, batch, **more):
    return getattr(functional, name)(**{key: batch[key] for key in READ[name] if key in batch}, **more)


def outcome(name, batch, **more):
    """What a call gives: tensors, or its error."""
    try:
        found = call(name, batch, **more)
    except (ShapeError, ArgumentError) as error:
        return type(error), str(error)
    return found if isinstance(found, tuple) else (found,)


@pytest.fixture
def both(monkeypatch):
    """A function that runs something with the installed back end, then without any."""

    def run(function):
        first = function()
        with monkeypatch.context() as patch:
            patch.setattr(VALUES, lambda *_: torch_recurrence)
            return first, function()

    return run


CASES = [(name, key) for name, keys in READ.items() for key in keys]


@pytest.mark.parametrize(("name", "key"), CASES, ids=lambda x: x)
def test_shapes_that_do_not_fit_are_refused_alike(both, name, key):
    for change in (lambda x: x[..., 0], lambda x: x[:1], lambda x: x.unsqueeze(0)):
        batch = make()
        value = batch[key] if isinstance(batch[key], torch.Tensor) else torch.full(SHAPE, batch[key])
        batch[key] = change(value)
        with_one, without = both(lambda batch=batch: outcome(name, batch))
        assert with_one == without
        assert with_one[0] is ShapeError
        assert str(tuple(batch[key].shape)) in with_one[1]


@pytest.mark.parametrize("name", READ)
def test_time_dimensions_that_are_not_there_are_refused_by_both(both, name):
    for dim in (3, -4):
        for kind, message in both(lambda dim=dim: outcome(name, make(), time_dim=dim)):
            assert kind is ShapeError
            assert f"time_dim is {dim}" in message


class Sub(torch.Tensor):
    """A subclass of tensors."""


def negative(x):
    return torch.complex(torch.zeros_like(x), -x).conj().imag if x.is_floating_point() else x


KINDS = {
    "integers for flags": lambda x: x if x.is_floating_point() else x.to(torch.uint8),
    "numbers for flags": lambda x: x if x.is_floating_point() else x.float(),
    "negative views": negative,
    "strided": lambda x: torch.stack((x, x), 1)[:, 1],
    "time first": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "expanded": lambda x: x[:1].expand(SHAPE),
    "a subclass": lambda x: x.as_subclass(Sub),
    "doubles": lambda x: x.double() if x.is_floating_point() else x,
    "half": lambda x: x.bfloat16() if x.is_floating_point() else x,
    "parameters": lambda x: torch.nn.Parameter(x) if x.is_floating_point() else x,
    "one element": lambda x: negative(x[:1, :1]),
    "no steps": lambda x: x[:, :0],
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("name", READ)
def test_tensors_of_any_kind_count_alike(both, name, kind):
    batch = {key: kind(x) if isinstance(x, torch.Tensor) else x for key, x in make().items()}
    with_one, without = both(lambda: outcome(name, batch))
    loose = {"rtol": 0.05, "atol": 0.05} if batch["reward"].dtype is torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close([x.as_subclass(torch.Tensor) for x in with_one], [*without], **loose)
    plain = {key: x.as_subclass(torch.Tensor).contiguous() for key, x in batch.items() if isinstance(x, torch.Tensor)}
    torch.testing.assert_close([*without], [*outcome(name, batch | plain)], check_stride=False, **loose)


@pytest.mark.parametrize("name", READ)
def test_types_may_be_mixed(both, name):
    for key in ("state_value", "next_state_value", "log_pi"):
        batch = make()
        batch[key] = batch[key].double()
        with_one, without = both(lambda batch=batch: outcome(name, batch))
        torch.testing.assert_close([*with_one], [*without], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2, -3])
@pytest.mark.parametrize("name", READ)
def test_time_is_anywhere(both, name, dim):
    with_one, without = both(lambda: outcome(name, make(), time_dim=dim))
    torch.testing.assert_close(with_one, without)


@pytest.mark.parametrize("name", READ)
def test_gradients_are_those_of_the_formula(both, name):
    batch = make(torch.float64)
    wanted = [key for key in READ[name] if key in batch and isinstance(batch[key], torch.Tensor)]
    leaves = [batch[key].requires_grad_() for key in wanted if batch[key].is_floating_point()]

    def gradients():
        found = outcome(name, batch)
        return torch.autograd.grad(sum((i + 1) * x.square().sum() for i, x in enumerate(found)), leaves)

    torch.testing.assert_close(*both(gradients))


@pytest.mark.parametrize("name", READ)
def test_derivatives_travel_forward(both, name):
    batch = make(torch.float64)

    def tangents():
        def moved(step):
            return outcome(name, batch | {"reward": batch["reward"] + step, "gamma": torch.as_tensor(0.9)})

        zero, one = torch.zeros(SHAPE, dtype=torch.float64), torch.ones(SHAPE, dtype=torch.float64)
        found = torch.func.jvp(moved, (zero,), (one,))[1]
        with forward_ad.dual_level():
            dual = moved(forward_ad.make_dual(zero, one))
            torch.testing.assert_close([*found], [forward_ad.unpack_dual(x).tangent for x in dual])
        torch.testing.assert_close([*found], [a - b for a, b in zip(moved(one), moved(zero), strict=True)])
        return found

    both(tangents)


@pytest.mark.parametrize("name", READ)
def test_one_graph(name):
    batch = make()
    compiled = torch.compile(lambda batch: call(name, batch), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(batch), call(name, batch))


def test_log_probabilities_may_be_integers_and_are_not_written(both):
    batch = make()
    kept = batch["log_pi"].clone()
    call("vtrace_advantage_estimate", batch)
    assert torch.equal(batch["log_pi"], kept)
    for key in ("log_pi", "log_mu"):
        batch[key] = torch.zeros(SHAPE, dtype=torch.int64)
    with_one, without = both(lambda: outcome("vtrace_advantage_estimate", batch))
    torch.testing.assert_close(with_one, without)


def test_a_back_end_need_not_know_out(monkeypatch):
    class Plain:
        def __call__(self, d, c, time_dim):
            return torch_recurrence(d, c, time_dim)

        def gae(self, gamma, lmbda, state_value, next_state_value, reward, done, terminated, time_dim):
            return reward, state_value

        def td_lambda(self, gamma, lmbda, next_state_value, reward, done, terminated, time_dim):
            return reward

    monkeypatch.setattr(VALUES, lambda *_: Plain())
    batch = make()
    assert call("vec_generalized_advantage_estimate", batch)[0] is batch["reward"]
    assert call("vec_td_lambda_return_estimate", batch) is batch["reward"]
