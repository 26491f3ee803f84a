"""Returns against a float64 loop over plain numbers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.core.errors import ArgumentError, ShapeError
from rl.core.hookspecs import hookimpl
from rl.core.registry import Registry

# each form of the recurrence is checked; the estimates call only the one that is chosen
from rl.objectives.functional import _recurrence
from rl.objectives.functional._recurrence import (
    linear_recurrence,
    recurrence_backend,
    scan_recurrence,
    torch_recurrence,
)
from rl.objectives.value import functional
from rl.plugins import objectives
from rl.testing import check_linear_recurrence


def naive_gae(gamma, lmbda, value, next_value, reward, done, terminated):
    """One trajectory, lists of numbers."""
    advantage, out = 0.0, []
    for t in reversed(range(len(reward))):
        delta = reward[t] + (0.0 if terminated[t] else gamma[t] * next_value[t]) - value[t]
        advantage = delta + (0.0 if done[t] else gamma[t] * lmbda[t] * advantage)
        out.append(advantage)
    return out[::-1]


def naive_lambda(gamma, lmbda, next_value, reward, done, terminated):
    """One trajectory, lists of numbers."""
    out = [0.0] * len(reward)
    for t in reversed(range(len(reward))):
        bootstrap = 0.0 if terminated[t] else next_value[t]
        if done[t] or t == len(reward) - 1:
            out[t] = reward[t] + gamma[t] * bootstrap
        else:
            out[t] = reward[t] + gamma[t] * ((1 - lmbda[t]) * bootstrap + lmbda[t] * out[t + 1])
    return out


def make(rows, steps, features=1, seed=0, ends=0.3):
    g = torch.Generator().manual_seed(seed)
    shape = (rows, steps, features)
    value, following, reward = (torch.randn(shape, generator=g, dtype=torch.float64) for _ in range(3))
    done = torch.rand(shape, generator=g) < ends
    terminated = done & (torch.rand(shape, generator=g) < 0.5)
    return {
        "state_value": value,
        "next_state_value": following,
        "reward": reward,
        "done": done,
        "terminated": terminated,
    }


def by_row(function, *tensors):
    """Apply a function on lists along dimension 1 of ``[B, T, F]`` tensors."""
    out = torch.empty_like(tensors[-3])
    for b in range(out.shape[0]):
        for f in range(out.shape[2]):
            out[b, :, f] = torch.tensor(function(*[t[b, :, f].tolist() for t in tensors]), dtype=out.dtype)
    return out


def expected_gae(gamma, lmbda, batch):
    names = ("state_value", "next_state_value", "reward", "done", "terminated")
    return by_row(naive_gae, gamma, lmbda, *[batch[name] for name in names])


def expected_lambda(gamma, lmbda, batch):
    names = ("next_state_value", "reward", "done", "terminated")
    return by_row(naive_lambda, gamma, lmbda, *[batch[name] for name in names])


def without_value(batch):
    return {name: x for name, x in batch.items() if name != "state_value"}


sizes = {"rows": st.integers(1, 4), "steps": st.integers(1, 20), "features": st.integers(1, 2)}
unit = st.floats(0, 1)


@settings(max_examples=60, deadline=None)
@given(**sizes, seed=st.integers(0, 2**20), ends=unit, gamma=unit, lmbda=unit)
def test_estimates_equal_the_naive_loop(rows, steps, features, seed, ends, gamma, lmbda):
    batch = make(rows, steps, features, seed, ends)
    gammas, lmbdas = torch.full_like(batch["reward"], gamma), torch.full_like(batch["reward"], lmbda)
    for prefix in ("", "vec_"):
        gae = getattr(functional, f"{prefix}generalized_advantage_estimate")
        advantage, target = gae(gamma, lmbda, **batch)
        torch.testing.assert_close(advantage, expected_gae(gammas, lmbdas, batch))
        torch.testing.assert_close(target, advantage + batch["state_value"])
        returns = getattr(functional, f"{prefix}td_lambda_return_estimate")(gamma, lmbda, **without_value(batch))
        torch.testing.assert_close(returns, expected_lambda(gammas, lmbdas, batch))
        returns = getattr(functional, f"{prefix}td1_return_estimate")(gamma, **without_value(batch))
        torch.testing.assert_close(returns, expected_lambda(gammas, torch.ones_like(gammas), batch))


@pytest.mark.parametrize("prefix", ["", "vec_"], ids=["loop", "vec"])
@pytest.mark.parametrize("name", ["td_lambda", "td1"])
def test_an_advantage_is_the_return_less_the_value(prefix, name):
    batch = make(2, 7)
    arguments = (0.9, 0.8) if name == "td_lambda" else (0.9,)
    advantage = getattr(functional, f"{prefix}{name}_advantage_estimate")(*arguments, **batch)
    returns = getattr(functional, f"{prefix}{name}_return_estimate")(*arguments, **without_value(batch))
    torch.testing.assert_close(advantage, returns - batch["state_value"])


@pytest.mark.parametrize("prefix", ["", "vec_"], ids=["loop", "vec"])
def test_gammas_and_lambdas_may_change_by_step(prefix):
    batch = make(3, 9)
    gamma, lmbda = torch.rand(3, 9, 1, dtype=torch.float64), torch.rand(3, 9, 1, dtype=torch.float64)
    advantage, _ = getattr(functional, f"{prefix}generalized_advantage_estimate")(gamma, lmbda, **batch)
    torch.testing.assert_close(advantage, expected_gae(gamma, lmbda, batch))
    returns = getattr(functional, f"{prefix}td_lambda_return_estimate")(gamma, lmbda, **without_value(batch))
    torch.testing.assert_close(returns, expected_lambda(gamma, lmbda, batch))


def test_a_scalar_tensor_counts_as_a_number():
    batch = make(2, 6)
    gamma, lmbda = torch.tensor(0.9, dtype=torch.float64), torch.tensor(0.8, dtype=torch.float64)
    ours = functional.vec_generalized_advantage_estimate(gamma, lmbda, **batch)
    torch.testing.assert_close(ours, functional.vec_generalized_advantage_estimate(0.9, 0.8, **batch))


@pytest.mark.parametrize("terminated", [False, True], ids=["truncated", "terminated"])
def test_one_step_by_hand(terminated):
    one = torch.ones(1, 1, 1)
    flags = {"done": one.bool(), "terminated": one.bool() if terminated else ~one.bool()}
    advantage, target = functional.vec_generalized_advantage_estimate(0.5, 0.9, 3 * one, 4 * one, one, **flags)
    assert target.item() == (1.0 if terminated else 3.0)
    assert advantage.item() == target.item() - 3.0
    assert functional.td0_return_estimate(0.5, 4 * one, one, flags["terminated"]).item() == target.item()


def test_terminated_defaults_to_done():
    batch = make(2, 8)
    batch["terminated"] = batch["done"]
    with_both = functional.vec_generalized_advantage_estimate(0.9, 0.8, **batch)
    del batch["terminated"]
    torch.testing.assert_close(functional.vec_generalized_advantage_estimate(0.9, 0.8, **batch), with_both)


def test_the_value_behind_a_termination_is_never_looked_at():
    batch = make(1, 6, ends=0.9)
    batch["next_state_value"] = batch["next_state_value"].masked_fill(batch["terminated"], torch.nan)
    assert functional.vec_generalized_advantage_estimate(0.9, 0.8, **batch)[0].isfinite().all()


@pytest.mark.parametrize("time_dim", [0, 1, -3])
def test_time_may_be_anywhere(time_dim):
    batch = make(4, 7)
    moved = {name: x.movedim(1, time_dim) for name, x in batch.items()}
    for prefix in ("", "vec_"):
        gae = getattr(functional, f"{prefix}generalized_advantage_estimate")
        advantage, _ = gae(0.9, 0.8, **moved, time_dim=time_dim)
        torch.testing.assert_close(advantage.movedim(time_dim, 1), gae(0.9, 0.8, **batch)[0])


def test_memory_need_not_be_contiguous():
    batch = make(4, 14)
    sparse = {name: x[::2, ::2] for name, x in batch.items()}
    dense = {name: x.contiguous() for name, x in sparse.items()}
    ours = functional.vec_generalized_advantage_estimate(0.9, 0.8, **sparse)
    torch.testing.assert_close(ours, functional.vec_generalized_advantage_estimate(0.9, 0.8, **dense))


def test_rewards_to_go_by_hand():
    done = torch.tensor([[[False], [True], [False], [False]]])
    returns = functional.reward2go(torch.tensor([[[1], [2], [3], [4]]]), done, 0.5)
    assert returns.flatten().tolist() == [2.0, 2.0, 5.0, 4.0]


@pytest.mark.parametrize("name", ["state_value", "next_state_value", "done", "terminated"])
def test_nothing_broadcasts(name):
    batch = make(2, 5)
    batch[name] = batch[name][..., 0]
    with pytest.raises(ShapeError, match=rf"^{name} has shape \(2, 5\) and reward \(2, 5, 1\)"):
        functional.vec_generalized_advantage_estimate(0.9, 0.8, **batch)


@pytest.mark.parametrize("name", ["gamma", "lmbda"])
def test_a_coefficient_does_not_broadcast(name):
    values = {"gamma": 0.9, "lmbda": 0.8} | {name: torch.full((5, 1), 0.9)}
    with pytest.raises(ShapeError, match=rf"{name} has shape \(5, 1\)"):
        functional.vec_generalized_advantage_estimate(**values, **make(2, 5))


def test_a_time_dimension_that_is_not_there_is_refused():
    flat = {name: x[:, 0, 0] for name, x in make(4, 2).items()}
    with pytest.raises(ShapeError, match="time_dim is -2"):
        functional.vec_generalized_advantage_estimate(0.9, 0.8, **flat)


def test_td0_needs_a_flag():
    with pytest.raises(ArgumentError, match="neither terminated nor done"):
        functional.td0_return_estimate(0.9, torch.ones(1, 1), torch.ones(1, 1))


def test_td0_advantage_is_the_temporal_difference():
    batch = make(3, 4)
    expected = batch["reward"] + 0.9 * batch["next_state_value"] * ~batch["terminated"] - batch["state_value"]
    torch.testing.assert_close(functional.td0_advantage_estimate(0.9, **batch), expected)


@pytest.mark.parametrize("form", [scan_recurrence, torch_recurrence, linear_recurrence])
def test_every_form_of_the_recurrence_conforms(form):
    check_linear_recurrence(form)


def test_an_estimate_is_differentiable():
    batch = make(2, 5)
    flags = {name: batch.pop(name) for name in ("done", "terminated")}
    leaves = [x.requires_grad_() for x in batch.values()]
    assert torch.autograd.gradcheck(
        lambda *x: functional.vec_generalized_advantage_estimate(0.9, 0.8, *x, **flags), leaves
    )


def test_the_backend_is_looked_up_once():
    first = recurrence_backend(torch.device("cpu"), torch.float32)
    assert recurrence_backend(torch.device("cpu"), torch.float32) is first


def test_a_plugin_with_a_faster_back_end_is_used(monkeypatch):
    calls = []

    class Fast:
        @hookimpl
        def rl_linear_recurrence(self, device, dtype):
            return self if dtype == torch.float64 else None

        def __call__(self, d, c, time_dim):
            calls.append(time_dim)
            return scan_recurrence(d, c, time_dim)

    registry = Registry()
    registry.register(objectives, "objectives")
    registry.register(Fast(), "fast")
    monkeypatch.setattr("rl.core.registry.default", lambda: registry)
    _recurrence.forget_back_ends()
    try:
        batch = make(2, 5)
        advantage, _ = functional.vec_generalized_advantage_estimate(0.9, 0.8, **batch)
        torch.testing.assert_close(advantage, functional.generalized_advantage_estimate(0.9, 0.8, **batch)[0])
        assert calls == [1]
        assert recurrence_backend(torch.device("cpu"), torch.float32) is torch_recurrence
    finally:
        _recurrence.forget_back_ends()


def test_estimates_compile_whole():
    batch = {name: x.float() if x.is_floating_point() else x for name, x in make(4, 16).items()}
    compiled = torch.compile(functional.vec_generalized_advantage_estimate, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(
        compiled(0.9, 0.8, **batch), functional.vec_generalized_advantage_estimate(0.9, 0.8, **batch)
    )
