"""Noise that is correlated in time: the Ornstein-Uhlenbeck process and state-dependent exploration."""

import math

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch.testing import assert_close

from rl.core import as_function, states_of
from rl.core.errors import ArgumentError, ContractError, ShapeError, SpecError
from rl.core.specs import Bounded, Composite, OneHot, Unbounded
from rl.modules import (
    AdditiveGaussianModule,
    EGreedyModule,
    LazygSDEModule,
    OrnsteinUhlenbeckProcessModule,
    gSDEModule,
    set_exploration_modules_spec_from_env,
    set_exploration_type,
)
from rl.testing import check_module


def start(module, action):
    batch = action.shape[:1]
    td = TensorDict(action=action, batch_size=batch)
    for state in states_of(module):
        td[state.name] = state.start(batch)
    return td


def test_the_process_is_the_recursion_of_the_paper():
    explore = OrnsteinUhlenbeckProcessModule(
        Unbounded((2,)), 0.5, 0.5, theta=0.3, mu=1.0, sigma=0.4, dt=0.1, x0=-2.0, sigma_min=0.1, n_steps_annealing=4
    )
    td, x = start(explore, torch.zeros(3, 2)), torch.full((3, 2), -2.0)
    for t in range(7):
        torch.manual_seed(t)
        n = torch.randn(3, 2)
        sigma = max(0.4 - (0.4 - 0.1) * t / 4, 0.1)
        x = x + 0.3 * (1.0 - x) * 0.1 + sigma * math.sqrt(0.1) * n
        torch.manual_seed(t)
        out = explore(td)
        assert_close(out["action"], 0.5 * x)
        td = out["next"].clone().set("action", torch.zeros(3, 2))


def test_the_stationary_variance_is_that_of_the_recursion():
    torch.manual_seed(0)
    explore = OrnsteinUhlenbeckProcessModule(Unbounded((1,)), 1.0, 1.0, theta=1.0, sigma=0.5, dt=0.1)
    td = start(explore, torch.zeros(4000, 1))
    for _ in range(60):
        td = explore(td.set("action", torch.zeros(4000, 1)))
        noise, td = td["action"], td["next"].clone()
    expected = 0.5**2 * 0.1 / (1 - 0.9**2)
    assert_close(noise.var(), torch.tensor(expected), atol=0.02, rtol=0.05)


def test_the_process_stays_within_bounds_and_out_of_evaluation():
    spec = Bounded(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 0.5]))
    explore = OrnsteinUhlenbeckProcessModule(Composite(action=spec), sigma=50.0)
    assert spec.is_in(explore(start(explore, torch.zeros(100, 2)))["action"])
    assert check_module(explore, start(explore, torch.zeros(5, 2))).not_exercised == []
    with set_exploration_type("deterministic"):
        assert not explore(TensorDict(action=torch.zeros(5, 2), batch_size=[5]))["action"].any()
        td = start(explore, torch.zeros(5, 2))
        assert not as_function(explore)(*[td[key] for key in explore.in_keys])[0].any()
    explore.step(500)
    assert_close(explore.eps, torch.tensor(0.55))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: OrnsteinUhlenbeckProcessModule(OneHot(3)), SpecError, "continuous"),
        (
            lambda: OrnsteinUhlenbeckProcessModule(Unbounded(2), sigma=0.1, sigma_min=0.2),
            ArgumentError,
            "sigma >= sigma_min",
        ),
        (lambda: OrnsteinUhlenbeckProcessModule(Unbounded(2), 0.1, 0.5), ArgumentError, "start >= end"),
        (
            lambda: OrnsteinUhlenbeckProcessModule(Unbounded(2))(TensorDict(action=torch.zeros(2))),
            ContractError,
            "ornstein_uhlenbeck.*make_tensordict_primer",
        ),
        (lambda: gSDEModule(2, 3, scale_min=0.0), ArgumentError, "scale_min"),
        (
            lambda: gSDEModule(2, 3)(torch.zeros(5, 2), torch.zeros(5, 4), torch.zeros(5, 2, 3)),
            ShapeError,
            r"\(5, 2\), \(5, 4\) and \(5, 2, 3\)",
        ),
    ],
)
def test_what_does_not_fit_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("make", "spec"),
    [
        (EGreedyModule, OneHot(3, dtype=torch.int64)),
        (AdditiveGaussianModule, Bounded(-1.0, 1.0, (2,))),
        (OrnsteinUhlenbeckProcessModule, Bounded(-1.0, 1.0, (2,))),
    ],
)
def test_the_spec_may_come_from_the_environment(make, spec):
    class Env:
        full_action_spec_unbatched = Composite(action=spec)

    explore = make(None)
    policy = TensorDictSequential(TensorDictModule(torch.nn.Identity(), ["action"], ["action"]), explore)
    with pytest.raises(SpecError, match=f"{make.__name__} has no spec.*set_exploration_modules_spec_from_env"):
        policy(TensorDict(action=spec.zero(), batch_size=[]))
    with pytest.raises(SpecError, match="no spec"):
        as_function(explore)(*[torch.zeros(1)] * len(explore.in_keys))
    set_exploration_modules_spec_from_env(policy, Env())
    assert explore.spec["action"] == spec
    td = TensorDict(action=spec.zero(), batch_size=[])
    for state in states_of(policy):
        td[state.name] = state.start()
    assert spec.is_in(policy(td)["action"])


@pytest.mark.parametrize("make", [AdditiveGaussianModule, OrnsteinUhlenbeckProcessModule])
def test_an_unbounded_spec_takes_the_bounds_of_the_former_one_away(make):
    explore = make(Bounded(-1.0, 1.0, (2,)))
    explore.set_spec(Unbounded((2,)))
    td = TensorDict(action=torch.full((2,), 99.0))
    for state in states_of(explore):
        td[state.name] = state.start()
    assert (explore(td)["action"] > 50).all()


def gsde_batch(count, actions=2, width=3):
    eps = torch.full((count, actions, width), torch.nan)
    return torch.randn(count, actions), torch.randn(1, width).expand(count, width), eps


def test_state_dependent_noise_has_the_stated_distribution():
    torch.manual_seed(0)
    module = gSDEModule(2, 3, sigma_init=0.7)
    mu, state, eps = gsde_batch(20_000)
    loc, scale, action, eps = module(mu, state, eps)
    expected = (0.7**2 * state.square().sum(-1, keepdim=True)).sqrt().expand(-1, 2)
    assert_close(scale, expected)
    assert torch.equal(loc, mu)
    z = (action - loc) / scale
    assert_close(z.mean(), torch.tensor(0.0), atol=0.02, rtol=0)
    assert_close(z.var(), torch.tensor(1.0), atol=0.03, rtol=0)
    assert abs(torch.corrcoef(z.T)[0, 1]) < 0.03


def test_noise_is_a_function_of_the_state_during_an_episode():
    torch.manual_seed(0)
    module = gSDEModule(2, 3)
    mu, state, eps = gsde_batch(4)
    _, _, action, eps = module(mu, state, eps)
    _, _, again, kept = module(mu, state, eps)
    assert_close(again, action)
    assert torch.equal(kept, eps)
    _, _, other, _ = module(mu, 2 * state, eps)
    assert_close(other - mu, 2 * (action - mu))
    eps[0] = torch.nan  # one environment was reset
    _, _, new, _ = module(mu, state, eps)
    assert_close(new[1:], action[1:])
    assert (new[0] != action[0]).all()
    with set_exploration_type("deterministic"):
        assert_close(module(mu, state, eps)[2], mu)


def test_initial_scale_bounds_gradients_and_transform():
    module = gSDEModule(2, 400)
    state, eps = torch.ones(1, 400), torch.randn(1, 2, 400)
    _, scale, action, _ = module(torch.zeros(1, 2), state, eps)
    assert_close(scale, torch.ones(1, 2))
    scale.sum().backward()
    assert module.raw_sigma.grad.abs().sum() > 0
    squashed = gSDEModule(2, 400, transform=torch.tanh)(torch.zeros(1, 2), state, eps)[2]
    assert_close(squashed, action.tanh())
    assert_close(module(torch.zeros(1, 2), 1e-6 * state, eps)[1], torch.full((1, 2), 0.01))
    assert list(gSDEModule(2, 3, learn_sigma=False).parameters()) == []


@pytest.mark.parametrize("learn", [False, True])
def test_a_lazy_module_becomes_the_same(learn):
    lazy, plain = LazygSDEModule(0.3, learn_sigma=learn), gSDEModule(2, 3, 0.3, learn_sigma=learn)
    mu, state, _ = gsde_batch(4)
    eps = torch.randn(4, 2, 3)
    for a, b in zip(lazy(mu, state, eps), plain(mu, state, eps), strict=True):
        assert_close(a, b)
    assert type(lazy) is gSDEModule
    assert len(list(lazy.parameters())) == learn
