"""Losses for data sets, against their formulas written out."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    NormalParamExtractor,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
)
from torch import nn
from torch.distributions import Categorical, Independent, Normal

from rl.core.errors import ArgumentError, ShapeError, SpecError
from rl.core.specs import Bounded
from rl.objectives import BCLoss, CQLLoss, DiscreteCQLLoss, DiscreteIQLLoss, IQLLoss, SoftUpdate, TD3BCLoss

B, OBS, ACT, GAMMA = 16, 3, 2, 0.9


def normal(loc, scale):
    return Independent(Normal(loc, scale), 1)


def gaussian():
    body = nn.Sequential(nn.Linear(OBS, 2 * ACT), NormalParamExtractor())
    head = ProbabilisticTensorDictModule(["loc", "scale"], ["action"], distribution_class=normal)
    return ProbabilisticTensorDictSequential(TensorDictModule(body, ["observation"], ["loc", "scale"]), head)


def discrete():
    head = ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=Categorical)
    return ProbabilisticTensorDictSequential(TensorDictModule(nn.Linear(OBS, 4), ["observation"], ["logits"]), head)


def q_network():
    both = TensorDictModule(lambda x, a: torch.cat([x, a], -1), ["observation", "action"], ["both"])
    net = nn.Sequential(nn.Linear(OBS + ACT, 8), nn.Tanh(), nn.Linear(8, 1))
    return TensorDictSequential(both, TensorDictModule(net, ["both"], ["state_action_value"]))


def v_network():
    return TensorDictModule(nn.Linear(OBS, 1), ["observation"], ["state_value"])


def batch(action):
    done = torch.rand(B, 1) < 0.3
    after = TensorDict(
        observation=torch.randn(B, OBS), reward=torch.randn(B, 1), done=done, terminated=done & (torch.rand(B, 1) < 0.5)
    )
    return TensorDict(observation=torch.randn(B, OBS), action=action, next=after, batch_size=[B])


def moved(loss):
    """The loss with target networks that differ from the trained ones."""
    for name, module in loss.named_children():
        if name.startswith("target_") and module is not None:
            for parameter in module.parameters():
                parameter.data += 0.3 * torch.randn_like(parameter)
    return loss


def test_cloning_is_likelihood_or_distance():
    data = batch(torch.rand(B, ACT))
    policy = gaussian()
    expected = -policy.get_dist(data.clone()).log_prob(data["action"]).mean()
    torch.testing.assert_close(BCLoss(policy)(data)["loss_bc"], expected)
    body = TensorDictModule(nn.Linear(OBS, ACT), ["observation"], ["action"])
    distance = (body.module(data["observation"]) - data["action"]).square().mean()
    torch.testing.assert_close(BCLoss(body)(data)["loss_bc"], distance)
    mode = policy.get_dist(data.clone()).mean
    torch.testing.assert_close(
        BCLoss(policy, loss_function="l1")(data)["loss_bc"], (mode - data["action"]).abs().mean()
    )
    choice, chosen = discrete(), batch(torch.randint(4, (B,)))
    logits = choice[0].module(chosen["observation"])
    torch.testing.assert_close(BCLoss(choice)(chosen)["loss_bc"], nn.functional.cross_entropy(logits, chosen["action"]))
    with pytest.raises(ShapeError, match=r"got actions of shape \(16, 2\) from the actor"):
        BCLoss(body)(batch(torch.rand(B, 1)))


def test_cloning_leaves_padding_out():
    data = batch(torch.rand(B, ACT))
    data["collector", "mask"] = torch.arange(B) < 10
    actor = TensorDictModule(nn.Linear(OBS, ACT), ["observation"], ["action"])
    padded = data.clone()
    padded["action"][10:] = torch.nan
    torch.testing.assert_close(
        BCLoss(actor)(padded)["loss_bc"], BCLoss(actor)(data[:10].exclude("collector"))["loss_bc"]
    )


def test_td3_bc_is_its_formula():
    actor = TensorDictModule(nn.Linear(OBS, ACT), ["observation"], ["action"])
    loss = moved(TD3BCLoss(actor, q_network(), bounds=(-torch.ones(ACT), torch.ones(ACT)), alpha=2.0))
    data = batch(torch.rand(B, ACT))
    action = actor.module(data["observation"])
    value = loss.qvalue_network.members[0](data.clone().set("action", action))["state_action_value"].squeeze(-1)
    imitation = (action - data["action"]).square().mean(-1)
    weight = 2.0 / value.abs().mean()
    out = loss(data)
    torch.testing.assert_close(out["loss_actor"], (imitation - weight.detach() * value).mean())
    torch.testing.assert_close(out["lmbd"], weight.detach())
    with pytest.raises(ArgumentError, match="alpha must be above 0"):
        TD3BCLoss(actor, q_network(), bounds=(-torch.ones(ACT), torch.ones(ACT)), alpha=0)


def iql_formula(data, values, target_values, value, next_value, log_prob):
    target = data["next", "reward"] + GAMMA * next_value * ~data["next", "terminated"]
    advantage = target_values.amin(0) - value
    weight = (3.0 * advantage).exp().clamp_max(100.0)
    asymmetric = torch.where(advantage < 0, 0.3, 0.7) * advantage.square()
    return {
        "loss_qvalue": (values - target).square().sum(0).mean(),
        "loss_value": asymmetric.mean(),
        "loss_actor": -(weight.squeeze(-1) * log_prob).mean(),
    }


def test_iql_is_its_formula():
    policy, value = gaussian(), v_network()
    settings = {"temperature": 3.0, "expectile": 0.7, "loss_function": "l2", "gamma": GAMMA}
    loss = moved(IQLLoss(policy, q_network(), value, **settings))
    data = batch(torch.rand(B, ACT))
    expected = iql_formula(
        data,
        loss.qvalue_network(data.clone())["state_action_value"],
        loss.target_qvalue_network(data.clone())["state_action_value"],
        value.module(data["observation"]),
        value.module(data["next", "observation"]),
        policy.get_dist(data.clone()).log_prob(data["action"]),
    )
    out = loss(data)
    for name, wanted in expected.items():
        torch.testing.assert_close(out[name], wanted, msg=name)
    out["loss_value"].backward(retain_graph=True)
    assert all(p.grad is None for p in policy.parameters())
    out["loss_actor"].backward()
    assert all(p.grad is None for p in loss.qvalue_network.parameters())


@pytest.mark.parametrize(("expectile", "sign"), [(0.0, -1), (1.0, 1)])
def test_the_ends_of_the_expectile_fit_the_worst_and_the_best_action(expectile, sign):
    loss = IQLLoss(gaussian(), q_network(), v_network(), expectile=expectile)
    data = batch(torch.rand(B, ACT))
    advantage = loss.target_qvalue_network(data.clone())["state_action_value"].amin(0)
    advantage = advantage - loss.value_network.module(data["observation"])
    torch.testing.assert_close(loss(data)["loss_value"], (sign * advantage).clamp_min(0).square().mean())
    for wrong in (-0.1, 1.1, None):
        with pytest.raises(ArgumentError, match="expectile must be at least 0 and at most 1"):
            IQLLoss(gaussian(), q_network(), v_network(), expectile=wrong)


def test_discrete_iql_is_its_formula():
    policy, value = discrete(), v_network()
    critic = TensorDictModule(nn.Linear(OBS, 4), ["observation"], ["action_value"])
    settings = {"temperature": 3.0, "expectile": 0.7, "loss_function": "l2", "gamma": GAMMA}
    loss = moved(DiscreteIQLLoss(policy, critic, value, **settings))
    index = torch.randint(4, (B,))
    data = batch(index)

    def chosen(network):
        values = network(data.clone())["action_value"]
        return values.gather(-1, index.reshape(1, B, 1).expand(2, B, 1))

    expected = iql_formula(
        data,
        chosen(loss.qvalue_network),
        chosen(loss.target_qvalue_network),
        value.module(data["observation"]),
        value.module(data["next", "observation"]),
        Categorical(logits=policy[0].module(data["observation"])).log_prob(index),
    )
    out = loss(data)
    for name, wanted in expected.items():
        torch.testing.assert_close(out[name], wanted, msg=name)


def test_the_conservative_penalty_lowers_values_outside_of_the_data():
    torch.manual_seed(0)
    data = batch(torch.full((B, ACT), 0.5) + 0.01 * torch.randn(B, ACT))
    loss = CQLLoss(gaussian(), q_network(), action_spec=Bounded(-1, 1, shape=(ACT,)), min_q_weight=5.0)
    optimizer, target = torch.optim.Adam(loss.qvalue_network.parameters(), 1e-2), SoftUpdate(loss, tau=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        loss.critic_loss(data)["loss_cql"].backward()
        optimizer.step()
        target.step()
    there = loss.qvalue_network(data.clone())["state_action_value"]
    elsewhere = loss.qvalue_network(data.clone().set("action", -torch.ones(B, ACT)))["state_action_value"]
    assert (there > elsewhere + 1).all()


def test_the_penalty_of_cql_is_its_formula():
    policy = gaussian()
    loss = CQLLoss(policy, q_network(), action_spec=Bounded(-1, 1, shape=(ACT,)), num_random=3, temperature=0.5)
    data = batch(torch.rand(B, ACT))
    torch.manual_seed(1)
    out = loss.critic_loss(data)
    torch.manual_seed(1)
    policy.get_dist(TensorDict(observation=data["next", "observation"], batch_size=[B])).sample((1,))  # of the target
    here = policy.get_dist(data.clone())
    first = here.sample((3,))
    there = policy.get_dist(TensorDict(observation=data["next", "observation"], batch_size=[B]))
    second = there.sample((3,))
    random = torch.rand_like(first) * 2 - 1
    density = torch.cat([torch.full((3, B), 2 * torch.tensor(0.5).log()), here.log_prob(first), there.log_prob(second)])
    total = 0
    for critic in loss.qvalue_network.members:

        def value(action, critic=critic):
            return critic(data.clone().set("action", action))["state_action_value"].squeeze(-1)

        values = torch.stack([value(action) for action in torch.cat([random, first, second])])
        soft = 0.5 * torch.logsumexp(values / 0.5 - density, 0)
        total = total + soft - value(data["action"])
    torch.testing.assert_close(out["loss_cql"], total.mean())


@pytest.mark.parametrize("options", [{}, {"max_q_backup": True}, {"deterministic_backup": False}])
def test_a_delayed_actor_of_cql_chooses_the_next_action(options):
    make = {"action_spec": Bounded(-1, 1, shape=(ACT,)), "gamma": GAMMA, **options}
    delayed = CQLLoss(gaussian(), q_network(), delay_actor=True, **make)
    other = deepcopy(delayed)
    other.actor_network = deepcopy(delayed.target_actor_network)
    with torch.no_grad():
        for one in other.target_actor_network.parameters():
            one.add_(1.0)
        for one in delayed.actor_network.parameters():
            one.add_(1.0)
    plain = CQLLoss(other.actor_network, list(delayed.qvalue_network.members), **make)
    plain.target_qvalue_network = delayed.target_qvalue_network
    data, found = batch(torch.rand(B, ACT)), {}
    for name, loss in {"delayed": delayed, "plain": plain, "other": other}.items():
        torch.manual_seed(0)
        found[name] = loss.critic_loss(data)["target_value"]
    torch.testing.assert_close(found["delayed"], found["plain"])
    assert not torch.isclose(found["delayed"], found["other"])


def test_the_weight_of_the_penalty_is_learned():
    make = {"action_spec": Bounded(-1, 1, shape=(ACT,)), "with_lagrange": True}
    data = batch(torch.rand(B, ACT))
    loss = CQLLoss(gaussian(), q_network(), lagrange_thresh=1e3, **make)
    assert "loss_alpha_prime" in loss.out_keys
    loss.critic_loss(data)["loss_alpha_prime"].backward()
    assert loss.log_alpha_prime.grad > 0  # the penalty is below the threshold: a smaller weight
    for options in ({"max_q_backup": True}, {"deterministic_backup": False}):
        out = CQLLoss(gaussian(), q_network(), **make, **options)(data)
        assert all(torch.isfinite(value) for value in out.values())
    with pytest.raises(SpecError, match="pass action_spec"):
        CQLLoss(gaussian(), q_network())


def test_the_actor_of_cql_imitates_at_first():
    """Its loss is alpha log pi(a') - log pi(a) with a of the data (the authors' first steps)."""
    loss = CQLLoss(gaussian(), q_network(), action_spec=Bounded(-1, 1, shape=(ACT,)), alpha_init=0.3, actor_bc=True)
    data = batch(torch.rand(B, ACT) * 2 - 1)
    torch.manual_seed(0)
    out = loss.actor_loss(data)
    torch.manual_seed(0)
    dist = loss.actor_network.get_dist(data)
    drawn = dist.rsample()
    torch.testing.assert_close(out["loss_actor"], (0.3 * dist.log_prob(drawn) - dist.log_prob(data["action"])).mean())
    loss.actor_bc = False
    assert not torch.isclose(loss.actor_loss(data)["loss_actor"], out["loss_actor"])


def test_discrete_cql_is_its_formula():
    net = nn.Linear(OBS, 4)
    loss = moved(DiscreteCQLLoss(TensorDictModule(net, ["observation"], ["action_value"]), gamma=GAMMA))
    index = torch.randint(4, (B,))
    data = batch(index)
    values = net(data["observation"])
    taken = values.gather(-1, index.unsqueeze(-1))
    following = loss.target_value_network.module(data["next", "observation"]).amax(-1, keepdim=True)
    target = data["next", "reward"] + GAMMA * following * ~data["next", "terminated"]
    out = loss(data)
    torch.testing.assert_close(out["loss_qvalue"], (taken - target).square().mean())
    torch.testing.assert_close(out["loss_cql"], (values.logsumexp(-1) - taken.squeeze(-1)).mean())
    weighted = DiscreteCQLLoss(loss.value_network, min_q_weight=3.0)
    torch.testing.assert_close(weighted(data)["loss_cql"], 3 * out["loss_cql"])
    with pytest.raises(ArgumentError, match="min_q_weight must be at least 0"):
        DiscreteCQLLoss(loss.value_network, min_q_weight=-1)
    assert loss.out_keys[:2] == ["loss_qvalue", "loss_cql"]


@pytest.mark.parametrize("stochastic", [False, True])
def test_cloning_imitates_the_actions_under_another_key(stochastic):
    data = batch(torch.rand(B, ACT))
    actor = gaussian() if stochastic else TensorDictModule(nn.Linear(OBS, ACT), ["observation"], ["action"])
    expected = BCLoss(actor)(data)["loss_bc"]
    loss = BCLoss(actor)
    loss.set_keys(action_target="expert")
    data["expert"], data["action"] = data["action"], torch.full((B, ACT), torch.nan)
    torch.testing.assert_close(loss(data)["loss_bc"], expected)
    assert loss.in_keys == ["observation", "expert"]
