"""V-trace against a float64 loop over plain numbers, and on TensorDicts."""

import pickle
from copy import deepcopy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import nn

from rl.core.errors import ArgumentError, ContractError, ShapeError, UnsupportedError
from rl.core.hookspecs import hookimpl
from rl.core.registry import Registry
from rl.objectives import ClipPPOLoss, DQNLoss, PPOLoss

# a back end that counts calls is registered, and the choice is cached for the process
from rl.objectives.functional import _recurrence
from rl.objectives.value import ValueEstimators, VTrace
from rl.objectives.value.functional import (
    generalized_advantage_estimate,
    td1_return_estimate,
    vtrace_advantage_estimate,
)
from rl.plugins import objectives


@pytest.fixture(params=["installed", "torch"], autouse=True)
def backend(request, monkeypatch):
    """The installed back end, and plain PyTorch."""
    if request.param == "torch":
        registry = Registry()
        registry.register(objectives, "objectives")
        monkeypatch.setattr("rl.core.registry.default", lambda: registry)
    _recurrence.forget_back_ends()
    yield
    _recurrence.forget_back_ends()


def naive(gamma, lmbda, rho_bar, c_bar, ratio, value, following, reward, done, terminated):
    """One trajectory, lists of numbers: the sum of eq. 1, each term by itself."""
    steps = len(reward)
    rho = [min(rho_bar, w) for w in ratio]
    c = [lmbda * min(c_bar, w) for w in ratio]
    bootstrap = [0.0 if end else v for end, v in zip(terminated, following, strict=True)]
    delta = [rho[t] * (reward[t] + gamma * bootstrap[t] - value[t]) for t in range(steps)]
    beyond = []
    for s in range(steps):
        total, weight = 0.0, 1.0
        for t in range(s, steps):
            total += weight * delta[t]
            if done[t]:
                break
            weight *= gamma * c[t]
        beyond.append(total)
    target = [v + x for v, x in zip(value, beyond, strict=True)]
    advantage = []
    for t in range(steps):
        behind = bootstrap[t] if done[t] or t == steps - 1 else bootstrap[t] + beyond[t + 1]
        advantage.append(rho[t] * (reward[t] + gamma * behind - value[t]))
    return advantage, target


def make(rows, steps, seed=0, ends=0.3):
    g = torch.Generator().manual_seed(seed)
    shape = (rows, steps, 1)
    names = ("log_pi", "log_mu", "state_value", "next_state_value", "reward")
    batch = {name: torch.randn(shape, generator=g, dtype=torch.float64) for name in names}
    batch["done"] = torch.rand(shape, generator=g) < ends
    batch["terminated"] = batch["done"] & (torch.rand(shape, generator=g) < 0.5)
    return batch


def expected(batch, gamma, lmbda, rho_bar, c_bar):
    names = ("state_value", "next_state_value", "reward", "done", "terminated")
    ratio = (batch["log_pi"] - batch["log_mu"]).exp()
    rows = [
        naive(gamma, lmbda, rho_bar, c_bar, ratio[b, :, 0].tolist(), *[batch[n][b, :, 0].tolist() for n in names])
        for b in range(len(ratio))
    ]
    return tuple(torch.tensor([row[i] for row in rows], dtype=torch.float64).unsqueeze(-1) for i in (0, 1))


@pytest.mark.parametrize(("rho_bar", "c_bar"), [(1.0, 1.0), (2.0, 0.5), (0.7, 0.0), (float("inf"), 3.0)])
@pytest.mark.parametrize(("rows", "steps"), [(1, 1), (3, 9), (9, 1), (2, 130)])
@pytest.mark.parametrize("ends", [0.0, 0.3, 1.0])
def test_it_equals_the_sum_in_the_paper(rows, steps, ends, rho_bar, c_bar):
    batch = make(rows, steps, ends=ends)
    found = vtrace_advantage_estimate(0.9, **batch, rho_thresh=rho_bar, c_thresh=c_bar, lmbda=0.8)
    torch.testing.assert_close(found, expected(batch, 0.9, 0.8, rho_bar, c_bar))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**20), gamma=st.floats(0, 1), lmbda=st.floats(0, 1))
def test_any_coefficients(seed, gamma, lmbda):
    batch = make(2, 12, seed)
    found = vtrace_advantage_estimate(gamma, **batch, lmbda=lmbda)
    torch.testing.assert_close(found, expected(batch, gamma, lmbda, 1.0, 1.0))


def test_on_policy_it_is_the_return_of_all_rewards():
    batch = make(4, 20)
    batch["log_mu"] = batch["log_pi"]
    same = {name: x for name, x in batch.items() if not name.startswith("log")}
    _, target = vtrace_advantage_estimate(0.9, **batch, lmbda=0.8)
    _, gae_target = generalized_advantage_estimate(0.9, 0.8, **same)
    torch.testing.assert_close(target, gae_target)
    # With values that agree from step to step, the sum of differences telescopes to the rewards.
    following = torch.cat((same["state_value"][:, 1:], same["next_state_value"][:, -1:]), 1)
    same["next_state_value"] = torch.where(same["done"], same["next_state_value"], following)
    batch["next_state_value"] = same["next_state_value"]
    del same["state_value"]
    torch.testing.assert_close(vtrace_advantage_estimate(0.9, **batch)[1], td1_return_estimate(0.9, **same))


@pytest.mark.parametrize("time_dim", [0, 1, -3])
def test_time_may_be_anywhere(time_dim):
    batch = make(4, 7)
    moved = {name: x.movedim(1, time_dim) for name, x in batch.items()}
    found = vtrace_advantage_estimate(0.9, **moved, time_dim=time_dim)
    torch.testing.assert_close([x.movedim(time_dim, 1) for x in found], list(vtrace_advantage_estimate(0.9, **batch)))


def test_it_is_differentiable():
    batch = make(2, 5)
    flags = {name: batch.pop(name) for name in ("done", "terminated")}
    leaves = [x.requires_grad_() for x in batch.values()]
    assert torch.autograd.gradcheck(lambda *x: vtrace_advantage_estimate(0.9, *x, **flags), leaves)


def test_it_compiles_whole():
    batch = make(3, 6)
    compiled = torch.compile(vtrace_advantage_estimate, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(0.9, **batch), vtrace_advantage_estimate(0.9, **batch))


@pytest.mark.parametrize("name", ["log_pi", "log_mu", "state_value", "done"])
def test_nothing_broadcasts(name):
    batch = make(2, 5)
    batch[name] = batch[name][..., 0]
    with pytest.raises(ShapeError, match=rf"^{name} has shape \(2, 5\) and reward \(2, 5, 1\)"):
        vtrace_advantage_estimate(0.9, **batch)


def test_an_empty_sequence_gives_an_empty_result():
    batch = {name: x[:, :0] for name, x in make(2, 3).items()}
    assert vtrace_advantage_estimate(0.9, **batch)[0].shape == (2, 0, 1)


@pytest.mark.parametrize(("rho", "c"), [(0.5, 1.0), (1.0, -0.1), (float("nan"), 0.0)])
def test_thresholds_out_of_order_are_refused(rho, c):
    with pytest.raises(ArgumentError, match=r"0 <= c_thresh <= rho_thresh"):
        vtrace_advantage_estimate(0.9, **make(1, 2), rho_thresh=rho, c_thresh=c)


@pytest.mark.parametrize("answers", [True, False])
def test_a_back_end_is_given_the_importance_ratio(monkeypatch, answers):
    calls, result = [], (torch.zeros(1), torch.ones(1))

    class Picky:
        @hookimpl
        def rl_linear_recurrence(self, device, dtype):
            return self

        def __call__(self, d, c, time_dim):
            return _recurrence.torch_recurrence(d, c, time_dim)

        def vtrace(self, gamma, lmbda, *args, **kwargs):
            calls.append((args, kwargs))
            return result if answers else None

    registry = Registry()
    registry.register(Picky(), "picky")
    monkeypatch.setattr("rl.core.registry.default", lambda: registry)
    _recurrence.forget_back_ends()
    batch = make(2, 5)
    found = vtrace_advantage_estimate(0.9, **batch, rho_thresh=2.0)
    (((ratio, *rest), options),) = calls
    assert options == {"rho_bar": 2.0, "c_bar": 1.0}
    torch.testing.assert_close(ratio, (batch["log_pi"] - batch["log_mu"]).exp())
    names = ("state_value", "next_state_value", "reward", "done", "terminated")
    assert all(one is other for one, other in zip(rest, (*(batch[name] for name in names), -2), strict=True))
    if answers:
        assert found is result
    else:
        torch.testing.assert_close(found, expected(batch, 0.9, 1.0, 2.0, 1.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("lies", ["time first", "transposed", "apart"])
def test_log_probabilities_may_lie_in_any_way(lies, dtype):
    batch = {name: x.to(dtype) if x.is_floating_point() else x for name, x in make(5, 33).items()}
    dense = vtrace_advantage_estimate(0.9, **batch)
    layout = {
        "time first": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
        "transposed": lambda x: x.permute(1, 2, 0).contiguous().permute(2, 0, 1),
        "apart": lambda x: torch.stack((x, x), 2)[:, :, 0],
    }[lies]
    for names in (("log_pi",), ("log_mu",), batch):
        moved = {name: layout(x) if name in names else x for name, x in batch.items()}
        torch.testing.assert_close(vtrace_advantage_estimate(0.9, **moved), dense)


def test_gradients_of_the_log_probabilities_alone():
    batch, weight = make(3, 6), torch.randn(3, 6, 1, dtype=torch.float64)

    def slopes(name):
        leaf = batch[name].clone().requires_grad_()
        advantage, target = vtrace_advantage_estimate(0.9, **batch | {name: leaf})
        return torch.autograd.grad((weight * (advantage + target)).sum(), leaf)[0]

    torch.testing.assert_close(slopes("log_pi"), -slopes("log_mu"))
    assert slopes("log_pi").abs().sum() > 0
    leaf = batch["log_pi"].clone().requires_grad_()
    with torch.no_grad():
        found = vtrace_advantage_estimate(0.9, **batch | {"log_pi": leaf})
    torch.testing.assert_close(found, vtrace_advantage_estimate(0.9, **batch))


@pytest.fixture
def networks():
    torch.manual_seed(0)
    head = ProbabilisticTensorDictModule(
        ["logits"], ["action"], distribution_class=torch.distributions.Categorical, return_log_prob=True
    )
    body = TensorDictModule(nn.Linear(3, 2), in_keys=["observation"], out_keys=["logits"])
    critic = TensorDictModule(nn.Linear(3, 1), in_keys=["observation"], out_keys=["state_value"])
    return ProbabilisticTensorDictSequential(body, head), critic


def rollout(actor, *size):
    batch = actor(TensorDict(observation=torch.randn(*size, 3), batch_size=size)).detach()
    done = torch.rand(*size, 1) < 0.3
    batch["next"] = TensorDict(
        observation=torch.randn(*size, 3), reward=torch.randn(*size, 1), done=done, terminated=done.clone()
    )
    batch["action_log_prob"] += 0.3 * torch.randn(size)
    return batch


@pytest.mark.parametrize("size", [(5,), (4, 5), (2, 3, 5)], ids=str)
def test_the_estimator_equals_the_function(networks, size):
    actor, critic = networks
    batch = rollout(actor, *size)
    log_pi = actor.get_dist(batch.clone()).log_prob(batch["action"]).detach()
    values = [critic.module(x["observation"]).detach() for x in (batch, batch["next"])]
    outcome = [batch["next", name] for name in ("reward", "done", "terminated")]
    logs = [x.unsqueeze(-1) for x in (log_pi, batch["action_log_prob"])]
    advantage, target = vtrace_advantage_estimate(0.9, *logs, *values, *outcome, rho_thresh=1.2, lmbda=0.7)
    estimator = VTrace(actor_network=actor, value_network=critic, gamma=0.9, lmbda=0.7, rho_thresh=1.2)
    for one in (estimator, deepcopy(estimator), pickle.loads(pickle.dumps(estimator))):
        out = one(batch.clone())
        torch.testing.assert_close(out["advantage"], advantage)
        torch.testing.assert_close(out["value_target"], target)
        torch.testing.assert_close(out["state_value"], values[0])
        assert not out["advantage"].requires_grad
    assert estimator.in_keys[-2:] == ["action", "action_log_prob"]


def test_gradients_reach_both_networks_if_asked_for(networks):
    actor, critic = networks
    batch = rollout(actor, 2, 5)
    out = VTrace(actor_network=actor, value_network=critic, differentiable=True)(batch)
    out["value_target"].square().sum().backward()
    assert all(p.grad is not None for network in networks for p in network.parameters())


def test_a_missing_log_probability_is_named(networks):
    actor, critic = networks
    batch = rollout(actor, 2, 5).exclude("action_log_prob")
    with pytest.raises(ContractError, match="action_log_prob"):
        VTrace(actor_network=actor, value_network=critic)(batch)


def test_log_probabilities_of_another_shape_are_refused(networks):
    actor, critic = networks
    batch = rollout(actor, 2, 5)
    batch["action_log_prob"] = batch["action_log_prob"].unsqueeze(-1)
    with pytest.raises(ShapeError, match=r"'action_log_prob' \(2, 5, 1\)"):
        VTrace(actor_network=actor, value_network=critic)(batch)


def test_another_actor_takes_the_place_of_the_old_one(networks):
    actor, critic = networks
    batch = rollout(actor, 2, 5)
    estimator = VTrace(actor_network=actor, value_network=critic)
    other = deepcopy(actor)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(torch.randn_like(p))
    estimator.actor_network = other
    fresh = VTrace(actor_network=other, value_network=critic)
    torch.testing.assert_close(estimator(batch.clone())["advantage"], fresh(batch.clone())["advantage"])


@pytest.mark.parametrize("kind", [ValueEstimators.VTrace, "vtrace"], ids=str)
def test_a_loss_with_an_actor_uses_it(networks, kind):
    actor, critic = networks
    batch = rollout(actor, 2, 5)
    loss = ClipPPOLoss(actor, critic)
    estimator = loss.make_value_estimator(kind, gamma=0.9, rho_thresh=2.0)
    assert isinstance(estimator, VTrace)
    found = loss(batch)
    by_hand = VTrace(actor_network=actor, value_network=critic, gamma=0.9, rho_thresh=2.0)(batch.clone())
    torch.testing.assert_close(found["loss_objective"], ClipPPOLoss(actor, critic)(by_hand)["loss_objective"])
    assert "advantage" not in batch.keys()


def test_the_estimator_of_a_loss_follows_its_keys_and_its_actor(networks):
    actor, critic = networks
    batch = rollout(actor, 2, 5)
    loss = PPOLoss(actor, critic)
    estimator = loss.make_value_estimator(ValueEstimators.VTrace)
    loss.set_keys(sample_log_prob="mu", reward="money")
    assert "mu" in estimator.in_keys
    assert ("next", "money") in estimator.in_keys
    batch["mu"] = batch.pop("action_log_prob")
    batch["next", "money"] = batch["next"].pop("reward")
    loss(batch)
    loss.actor_network = other = deepcopy(actor)
    loss(batch)
    assert estimator.actor_network is other
    copied = deepcopy(loss)
    assert copied.value_estimator.actor_network is copied.actor_network
    assert len(list(copied.parameters())) == len(list(loss.parameters()))


def test_a_loss_without_an_actor_refuses_it():
    network = TensorDictModule(nn.Linear(3, 2), in_keys=["observation"], out_keys=["action_value"])
    loss = DQNLoss(network)
    before = loss.value_estimator
    with pytest.raises(UnsupportedError, match="DQNLoss cannot use VTrace, which needs log-probabilities of a policy"):
        loss.make_value_estimator(ValueEstimators.VTrace)
    assert loss.value_estimator is before
