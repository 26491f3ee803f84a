"""ImpalaLoss against a float64 loop written from section 4 of the paper."""

import math

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    CompositeDistribution,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
)
from torch import nn
from torch.distributions import Categorical, Independent, Normal

from rl.core.errors import ArgumentError, ContractError, ShapeError, UnsupportedError
from rl.objectives import A2CLoss, ImpalaLoss, VTrace
from rl.testing import check_loss


def networks(kind=Categorical):
    torch.manual_seed(0)
    body = TensorDictModule(nn.Linear(3, 3), ["observation"], ["logits"])
    params = ["logits"]
    if kind is Normal:
        body = TensorDictModule(lambda x: (x[..., :2], x[..., :2].exp()), ["observation"], ["loc", "scale"])
        params = ["loc", "scale"]
    head = ProbabilisticTensorDictModule(params, ["action"], distribution_class=kind, return_log_prob=True)
    critic = TensorDictModule(nn.Linear(3, 1), ["observation"], ["state_value"])
    return ProbabilisticTensorDictSequential(body, head), critic


def make_batch(*size):
    g = torch.Generator().manual_seed(1)
    done = torch.rand(*size, 1, generator=g) < 0.3
    return TensorDict(
        {
            "observation": torch.randn(*size, 3, generator=g),
            "action": torch.randint(3, size, generator=g),
            "action_log_prob": -2 * torch.rand(size, generator=g),
            "next": {
                "observation": torch.randn(*size, 3, generator=g),
                "reward": torch.randn(*size, 1, generator=g),
                "done": done,
                "terminated": done & (torch.rand(*size, 1, generator=g) < 0.5),
            },
        },
        batch_size=size,
    )


def by_hand(actor, critic, batch, *, gamma, lmbda, rho_thresh, c_thresh):
    """V-trace backwards over each row; then the three losses, summed over steps."""
    policy, value = actor[0].module.double(), critic.module.double()
    objective, squares, entropy = [], [], []
    for row in batch:
        steps = list(row)
        beyond = 0.0  # v_{t+1} - V(x_{t+1})
        for step in reversed(steps):
            log_pi = policy(step["observation"].double()).log_softmax(-1)
            v = value(step["observation"].double())[0]
            after = 0.0 if step["next", "terminated"] else value(step["next", "observation"].double())[0].item()
            if step["next", "done"]:
                beyond = 0.0
            ratio = math.exp(log_pi[step["action"]].item() - step["action_log_prob"].item())
            rho, c = min(ratio, rho_thresh), lmbda * min(ratio, c_thresh)
            reward = step["next", "reward"].item()
            advantage = rho * (reward + gamma * (after + beyond) - v.item())
            beyond = rho * (reward + gamma * after - v.item()) + gamma * c * beyond
            objective.append(-log_pi[step["action"]] * advantage)
            squares.append((v - (v.item() + beyond)) ** 2)
            entropy.append(-(log_pi.exp() * log_pi).sum())
    return [torch.stack(one) for one in (objective, squares, entropy)]


@pytest.mark.parametrize(("rho", "c", "lmbda"), [(1.0, 1.0, 1.0), (2.0, 0.7, 0.9)])
def test_losses_and_gradients_equal_a_loop_by_hand(rho, c, lmbda):
    actor, critic = networks()
    options = {"gamma": 0.9, "lmbda": lmbda, "rho_thresh": rho, "c_thresh": c}
    loss = ImpalaLoss(actor, critic, entropy_coeff=0.3, critic_coeff=0.7, **options)
    batch = make_batch(4, 6)
    out = loss(batch)
    found = [out[name] for name in ("loss_objective", "loss_critic", "loss_entropy")]
    weights = list(loss.parameters())
    gradients = torch.autograd.grad(sum(found), weights)
    objective, squares, entropy = by_hand(actor, critic, batch, **options)
    expected = objective.mean(), 0.7 * squares.mean(), -0.3 * entropy.mean()
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.detach(), theirs.detach().float())
    theirs = torch.autograd.grad(sum(expected), list(loss.double().parameters()))
    torch.testing.assert_close(gradients, tuple(g.float() for g in theirs), rtol=1e-4, atol=1e-5)


def test_it_is_a2c_with_v_trace():
    actor, critic = networks()
    a2c = A2CLoss(actor, critic, critic_coeff=0.5, loss_critic_type="l2")
    a2c.make_value_estimator("vtrace", gamma=0.99)
    batch = make_batch(4, 6)
    torch.testing.assert_close(ImpalaLoss(actor, critic)(batch), a2c(batch))
    stale = batch.clone().update({"advantage": torch.zeros(4, 6, 1), "value_target": torch.zeros(4, 6, 1)})
    torch.testing.assert_close(ImpalaLoss(actor, critic)(stale), a2c(batch))
    assert not {"advantage", "value_target", "state_value"} & {*batch.keys()}


@pytest.mark.parametrize("size", [(3, 5), (1, 1), (5,)], ids=str)
def test_the_loss_conforms(size):
    frozen = [("next", "observation"), ("next", "reward"), "action_log_prob"]
    check_loss(ImpalaLoss(*networks()), make_batch(*size), frozen=frozen)


def test_gradients_reach_what_they_should():
    actor, critic = networks()
    loss, batch = ImpalaLoss(actor, critic), make_batch(3, 5)
    for name, reached, other in (("loss_objective", actor, critic), ("loss_critic", critic, actor)):
        loss.zero_grad()
        loss(batch)[name].backward()
        assert all(p.grad is not None for p in reached.parameters())
        assert all(p.grad is None for p in other.parameters())


def test_log_ratios_of_80_and_nan_after_terminal_states_stay_finite():
    loss, batch = ImpalaLoss(*networks()), make_batch(4, 6)
    batch["action_log_prob"] = torch.where(torch.arange(6) < 3, 80.0, -80.0).expand(4, 6).clone()
    batch["next", "observation"][batch["next", "terminated"].squeeze(-1)] = torch.nan
    out = loss(batch)
    (out["loss_objective"] + out["loss_critic"]).backward()
    assert out["loss_objective"].isfinite()
    assert all(p.grad.isfinite().all() for p in loss.parameters())


def test_padding_is_masked_out():
    loss, batch = ImpalaLoss(*networks()), make_batch(4, 5)
    batch["next", "done"][:, 2] = True
    expected = loss(batch[:, :3])
    batch["collector", "mask"] = torch.arange(5).expand(4, 5) < 3
    batch["observation"][:, 3:], batch["next", "reward"][:, 3:], batch["action"][:, 3:] = torch.nan, torch.nan, 99
    torch.testing.assert_close(loss(batch), expected)


def test_the_critics_loss_may_leave_a_shared_trunk_alone():
    actor, _ = networks()
    trunk = TensorDictModule(nn.Linear(3, 5), ["observation"], ["hidden"])
    policy = TensorDictModule(nn.Linear(5, 3), ["hidden"], ["logits"])
    actor = ProbabilisticTensorDictSequential(trunk, policy, actor[-1])
    critic = TensorDictSequential(trunk, TensorDictModule(nn.Linear(5, 1), ["hidden"], ["state_value"]))
    ImpalaLoss(actor, critic, separate_losses=True)(make_batch(3, 5))["loss_critic"].backward()
    assert [p.grad is None for p in critic.parameters()] == [True, True, False, False]


def test_several_actions_are_scored_as_a_whole():
    torch.manual_seed(0)
    params = [("params", "move", "logits"), ("params", "arm", "force", "loc"), ("params", "arm", "force", "scale")]
    net = nn.Linear(3, 6)
    body = TensorDictModule(
        lambda x: (net(x)[..., :2], net(x)[..., 2:4], net(x)[..., 4:].exp()), ["observation"], params
    )
    heads = ["move", ("arm", "force")]
    head = ProbabilisticTensorDictModule(
        ["params"],
        heads,
        distribution_class=CompositeDistribution,
        distribution_kwargs={
            "distribution_map": {
                "move": Categorical,
                ("arm", "force"): lambda loc, scale: Independent(Normal(loc, scale), 1),
            }
        },
        return_log_prob=True,
    )
    actor, critic = ProbabilisticTensorDictSequential(body, head), networks()[1]
    batch = make_batch(3, 5).exclude("action", "action_log_prob")
    batch = batch.update(actor(batch.clone()).select(*heads, "move_log_prob", ("arm", "force_log_prob")).detach())
    out = ImpalaLoss(actor, critic, entropy_coeff={"move": 0.5, ("arm", "force"): 0.1})(batch)
    estimated = VTrace(actor_network=actor, value_network=critic, gamma=0.99)(batch.clone())
    log_prob = batch["move_log_prob"] + batch["arm", "force_log_prob"]
    torch.testing.assert_close(out["loss_objective"], -(log_prob * estimated["advantage"].squeeze(-1)).mean())


def test_other_estimators_layouts_and_batches_are_refused():
    loss, batch = ImpalaLoss(*networks()), make_batch(3, 5)
    with pytest.raises(UnsupportedError, match="takes VTrace without shifted and differentiable, got GAE"):
        loss.make_value_estimator("gae")
    with pytest.raises(UnsupportedError, match="got VTrace"):
        loss.make_value_estimator("vtrace", shifted=True)
    with pytest.raises(ArgumentError, match=r"rho_thresh=0\.5 and c_thresh=1\.0"):
        ImpalaLoss(*networks(), rho_thresh=0.5)
    with pytest.raises(ContractError, match="ImpalaLoss reads 'action_log_prob'"):
        loss(batch.exclude("action_log_prob"))
    with pytest.raises(ContractError, match="needs steps in time order"):
        loss(batch.clone().set("index", torch.randperm(15).reshape(3, 5)))
    with pytest.raises(ShapeError, match=r"torch\.distributions\.Independent"):
        ImpalaLoss(*networks(Normal))(batch.clone().set("action", torch.randn(3, 5, 2)))
