"""DDPG, TD3, SAC, REDQ, CrossQ and discrete SAC against the papers' formulas written out."""

import inspect
import math
import pickle
from copy import deepcopy

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    CompositeDistribution,
    NormalParamExtractor,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
)
from torch import nn
from torch.distributions import Categorical, Independent, Normal
from torch.nn.functional import mse_loss, one_hot, smooth_l1_loss

from rl.core.errors import ArgumentError, ContractError, ShapeError, UnknownArgumentError, UnsupportedError
from rl.core.specs import Bounded, Composite
from rl.objectives import (
    CrossQLoss,
    DDPGLoss,
    DiscreteSACLoss,
    REDQLoss,
    SACLoss,
    SoftUpdate,
    TD1Estimator,
    TD3Loss,
    TDLambdaEstimator,
    TQCLoss,
    ValueEstimators,
)
from rl.testing import check_loss

OBS, ACT, N = 3, 2, 4


class Joined(nn.Module):
    def __init__(self, last=1):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(OBS + ACT, 8), nn.Tanh(), nn.Linear(8, last))

    def forward(self, observation, action):
        return self.net(torch.cat([observation, action], -1))


class Gauss(Independent):
    """A normal distribution, whose samples are its means plus a fixed part of its scales."""

    def __init__(self, loc, scale):
        super().__init__(Normal(loc, scale), 1)

    def rsample(self, sample_shape=()):
        return self.base_dist.loc + 0.3 * self.base_dist.scale


def critic():
    return TensorDictModule(Joined(), ["observation", "action"], ["state_action_value"])


def policy(distribution=Gauss):
    body = nn.Sequential(nn.Linear(OBS, 8), nn.Tanh(), nn.Linear(8, 2 * ACT), NormalParamExtractor())
    head = ProbabilisticTensorDictModule(["loc", "scale"], ["action"], distribution_class=distribution)
    return ProbabilisticTensorDictSequential(TensorDictModule(body, ["observation"], ["loc", "scale"]), head)


def deterministic():
    net = nn.Sequential(nn.Linear(OBS, 8), nn.Tanh(), nn.Linear(8, ACT), nn.Tanh())
    return TensorDictModule(net, ["observation"], ["action"])


def discrete():
    head = ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=Categorical)
    actor = ProbabilisticTensorDictSequential(TensorDictModule(nn.Linear(OBS, N), ["observation"], ["logits"]), head)
    return actor, TensorDictModule(nn.Linear(OBS, N), ["observation"], ["action_value"])


def make(name, **options):
    torch.manual_seed(0)
    if name == "ddpg":
        return DDPGLoss(deterministic(), critic(), **options)
    if name == "td3":
        return TD3Loss(deterministic(), critic(), **{"bounds": (-1.0, 1.0), **options})
    if name == "discrete-sac":
        return DiscreteSACLoss(*discrete(), **options)
    if name == "tqc":
        network = TensorDictModule(Joined(5), ["observation", "action"], ["state_action_value"])
        return TQCLoss(policy(), network, **{"top_quantiles_to_drop_per_net": 2, **options})
    if name == "sac-value":
        value = TensorDictModule(nn.Linear(OBS, 1), ["observation"], ["state_value"])
        return SACLoss(policy(), critic(), value, **options)
    kind = {"sac": SACLoss, "redq": REDQLoss, "crossq": CrossQLoss}[name]
    return kind(policy(), critic(), **({"num_qvalue_nets": 4} if name == "redq" else {}), **options)


NAMES = ["ddpg", "td3", "sac", "sac-value", "redq", "crossq", "discrete-sac", "tqc"]


def make_batch(*size, name="sac", dtype=torch.float32):
    g = torch.Generator().manual_seed(1)
    done = torch.rand(*size, 1, generator=g) < 0.4
    action = torch.rand(*size, ACT, generator=g, dtype=dtype) * 2 - 1
    if name == "discrete-sac":
        action = torch.randint(N, size, generator=g)
    return TensorDict(
        {
            "observation": torch.randn(*size, OBS, generator=g, dtype=dtype),
            "action": action,
            "next": {
                "observation": torch.randn(*size, OBS, generator=g, dtype=dtype),
                "reward": torch.randn(*size, 1, generator=g, dtype=dtype),
                "done": done,
                "terminated": done & (torch.rand(*size, 1, generator=g) < 0.5),
            },
        },
        batch_size=size,
    )


def q(network, observation, action):
    return network.module(observation, action)


def outcome(batch):
    after = batch["next"]
    return after["observation"], after["reward"], (~after["terminated"]).to(after["reward"].dtype)


# ---- values


def test_ddpg_is_the_paper():
    loss, batch = make("ddpg", gamma=0.9).double(), make_batch(16, dtype=torch.float64)
    loss.target_value_network.module.net[0].bias.data.add_(0.1)
    out = loss(batch)
    after, reward, alive = outcome(batch)
    target = reward + 0.9 * alive * q(loss.target_value_network, after, loss.target_actor_network.module(after))
    value = q(loss.value_network, batch["observation"], batch["action"])
    torch.testing.assert_close(out["loss_value"], mse_loss(value, target.detach()))
    now = q(loss.value_network, batch["observation"], loss.actor_network.module(batch["observation"]))
    torch.testing.assert_close(out["loss_actor"], -now.mean())
    torch.testing.assert_close(batch["td_error"], (value - target).abs().squeeze(-1).detach())


def test_td3_is_the_paper():
    loss, batch = make("td3", gamma=0.9, loss_function="l2"), make_batch(16)
    after, reward, alive = outcome(batch)
    torch.manual_seed(7)
    out = loss(batch)
    torch.manual_seed(7)
    mean = loss.target_actor_network.module(after)
    noise = (torch.randn_like(mean) * 0.2).clamp(-0.5, 0.5)
    action = (mean + noise).clamp(-1, 1)
    twins = loss.target_qvalue_network.members
    target = (reward + 0.9 * alive * torch.min(*[q(one, after, action) for one in twins])).detach()
    expected = sum(
        mse_loss(q(one, batch["observation"], batch["action"]), target) for one in loss.qvalue_network.members
    )
    torch.testing.assert_close(out["loss_qvalue"], expected)
    first = q(loss.qvalue_network.members[0], batch["observation"], loss.actor_network.module(batch["observation"]))
    torch.testing.assert_close(out["loss_actor"], -first.mean())


@pytest.mark.parametrize("name", ["sac", "redq"])
def test_sac_and_redq_are_the_papers(name):
    loss, batch = make(name, gamma=0.9, alpha_init=0.3).double(), make_batch(16, dtype=torch.float64)
    torch.manual_seed(3)
    out = loss(batch)
    torch.manual_seed(3)
    after, reward, alive = outcome(batch)

    def act(observation):
        dist = loss.actor_network.get_dist(TensorDict(observation=observation, batch_size=[16]))
        action = dist.rsample()
        return action, dist.log_prob(action).unsqueeze(-1)

    action, log_prob = act(after)
    values = torch.stack([q(one, after, action) for one in loss.target_qvalue_network.members])
    chosen = values if name == "sac" else values[torch.randperm(4)[:2]]
    target = (reward + 0.9 * alive * (chosen.amin(0) - 0.3 * log_prob)).detach()
    fit = [smooth_l1_loss(q(one, batch["observation"], batch["action"]), target) for one in loss.qvalue_network.members]
    torch.testing.assert_close(out["loss_qvalue"], sum(fit))
    action, log_prob = act(batch["observation"])
    values = torch.stack([q(one, batch["observation"], action) for one in loss.qvalue_network.members])
    best = values.amin(0) if name == "sac" else values.mean(0)
    torch.testing.assert_close(out["loss_actor"], (0.3 * log_prob - best).mean())
    torch.testing.assert_close(out["loss_alpha"], -(loss.log_alpha * (log_prob.detach() - ACT)).mean())
    torch.testing.assert_close(out["entropy"], -log_prob.mean().detach())
    assert out["alpha"].item() == pytest.approx(0.3)


def test_sac_with_a_value_network_is_the_first_paper():
    loss, batch = make("sac-value", gamma=0.9, alpha_init=0.3, loss_function="l2"), make_batch(16)
    out = loss(batch)
    after, reward, alive = outcome(batch)
    target = (reward + 0.9 * alive * loss.target_value_network.module(after)).detach()
    fit = [mse_loss(q(one, batch["observation"], batch["action"]), target) for one in loss.qvalue_network.members]
    torch.testing.assert_close(out["loss_qvalue"], sum(fit))
    dist = loss.actor_network.get_dist(batch.select("observation"))
    action = dist.rsample()
    values = torch.stack([q(one, batch["observation"], action) for one in loss.qvalue_network.members])
    soft = values.amin(0) - 0.3 * dist.log_prob(action).unsqueeze(-1)
    value = loss.value_network.module(batch["observation"])
    torch.testing.assert_close(out["loss_value"], mse_loss(value, soft.detach()))
    assert loss.target_qvalue_network is None


def test_discrete_sac_is_the_paper():
    loss, batch = (
        make("discrete-sac", gamma=0.9, alpha_init=0.3, loss_function="l2"),
        make_batch(16, name="discrete-sac"),
    )
    out = loss(batch)
    after, reward, alive = outcome(batch)
    log_pi = loss.actor_network[0].module(after).log_softmax(-1)
    worst = torch.min(*[one.module(after) for one in loss.target_qvalue_network.members])
    target = (reward + 0.9 * alive * (log_pi.exp() * (worst - 0.3 * log_pi)).sum(-1, keepdim=True)).detach()
    fit = [
        mse_loss(one.module(batch["observation"]).gather(-1, batch["action"].unsqueeze(-1)), target)
        for one in loss.qvalue_network.members
    ]
    torch.testing.assert_close(out["loss_qvalue"], sum(fit))
    log_pi = loss.actor_network[0].module(batch["observation"]).log_softmax(-1)
    worst = torch.min(*[one.module(batch["observation"]) for one in loss.qvalue_network.members])
    torch.testing.assert_close(out["loss_actor"], (log_pi.exp() * (0.3 * log_pi - worst)).sum(-1).mean())
    expected = (log_pi.exp() * log_pi).sum(-1).detach()
    torch.testing.assert_close(out["loss_alpha"], -(loss.log_alpha * (expected + 0.98 * math.log(N))).mean())
    same = make_batch(16, name="discrete-sac")
    same["action"] = one_hot(same["action"], N)
    torch.testing.assert_close(make("discrete-sac", gamma=0.9, alpha_init=0.3, loss_function="l2")(same), out)


def test_tqc_is_the_paper():
    loss, batch = make("tqc", gamma=0.9, alpha_init=0.3).double(), make_batch(16, dtype=torch.float64)
    out = loss(batch)
    after, reward, alive = outcome(batch)
    dist = loss.actor_network.get_dist(TensorDict(observation=after, batch_size=[16]))
    action = dist.rsample()
    log_prob = dist.log_prob(action).unsqueeze(-1)
    pooled = torch.cat([q(one, after, action) for one in loss.target_qvalue_network.members], -1)
    atoms = pooled.sort(-1).values[:, :6]
    target = (reward + 0.9 * alive * (atoms - 0.3 * log_prob)).detach()
    total = 0.0
    for one in loss.qvalue_network.members:
        quantiles = q(one, batch["observation"], batch["action"])
        for row in range(16):
            for i in range(5):
                for j in range(6):
                    error = target[row, j] - quantiles[row, i]
                    huber = 0.5 * error**2 if error.abs() <= 1 else error.abs() - 0.5
                    total = total + abs((i + 0.5) / 5 - float(error < 0)) * huber
    torch.testing.assert_close(out["loss_qvalue"], total / (2 * 16 * 5 * 6))
    with pytest.raises(ShapeError, match="nothing is left"):
        make("tqc", top_quantiles_to_drop_per_net=5)(make_batch(4))


def test_an_action_that_is_not_allowed_leaves_gradients_finite():
    class Masked(Categorical):
        def __init__(self, logits):
            super().__init__(logits=logits.masked_fill(torch.tensor([False, True, False, False]), -torch.inf))

    actor, value = discrete()
    actor = ProbabilisticTensorDictSequential(
        actor[0], ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=Masked)
    )
    loss = DiscreteSACLoss(actor, value)
    out = loss(make_batch(8, name="discrete-sac"))
    (out["loss_actor"] + out["loss_qvalue"] + out["loss_alpha"]).backward()
    assert all(one.grad.isfinite().all() for one in loss.parameters())


def test_crossq_values_both_ends_in_one_call():
    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.net = nn.BatchNorm1d(OBS + ACT), nn.Linear(OBS + ACT, 1)

        def forward(self, observation, action):
            return self.net(self.norm(torch.cat([observation, action], -1)))

    torch.manual_seed(0)
    network = TensorDictModule(Normed(), ["observation", "action"], ["state_action_value"])
    loss = CrossQLoss(policy(), network, gamma=0.9, alpha_init=0.3, loss_function="l2")
    twins, batch = deepcopy(loss.qvalue_network), make_batch(16)
    out = loss.critic_loss(batch)
    after, reward, alive = outcome(batch)
    dist = loss.actor_network.get_dist(TensorDict(observation=after, batch_size=[16]))
    action = dist.rsample()
    seen, acted = torch.cat([batch["observation"], after]), torch.cat([batch["action"], action.detach()])
    values = torch.stack([q(one, seen, acted) for one in twins.members])
    soft = values[:, 16:].amin(0) - 0.3 * dist.log_prob(action).unsqueeze(-1)
    target = (reward + 0.9 * alive * soft).detach()
    torch.testing.assert_close(out["loss_qvalue"], sum(mse_loss(one, target) for one in values[:, :16]))
    means = [one.module.norm.running_mean.clone() for one in loss.qvalue_network.members]
    loss.actor_loss(batch)
    for one, mean in zip(loss.qvalue_network.members, means, strict=True):
        assert (one.module.norm.running_mean == mean).all()
    assert loss.qvalue_network.training


def acted(actor, observation):
    """The action that `actor` draws, and its log-probability ``[*B, 1]``."""
    dist = actor.get_dist(TensorDict(observation=observation, batch_size=observation.shape[:-1]))
    action = dist.rsample()
    return action, dist.log_prob(action).unsqueeze(-1)


@pytest.mark.parametrize("name", ["sac", "redq"])
def test_a_delayed_actor_chooses_the_next_action(name):
    loss, batch = make(name, gamma=0.9, alpha_init=0.3, loss_function="l2", delay_actor=True), make_batch(16)
    for one in loss.target_actor_network.parameters():
        one.data.add_(0.2)
    torch.manual_seed(3)
    out = loss(batch)
    torch.manual_seed(3)
    after, reward, alive = outcome(batch)
    action, log_prob = acted(loss.target_actor_network, after)
    values = torch.stack([q(one, after, action) for one in loss.target_qvalue_network.members])
    chosen = values if name == "sac" else values[torch.randperm(4)[:2]]
    target = (reward + 0.9 * alive * (chosen.amin(0) - 0.3 * log_prob)).detach()
    fit = [mse_loss(q(one, batch["observation"], batch["action"]), target) for one in loss.qvalue_network.members]
    torch.testing.assert_close(out["loss_qvalue"], sum(fit))
    action, log_prob = acted(loss.actor_network, batch["observation"])  # the trained one, for its own loss
    values = torch.stack([q(one, batch["observation"], action) for one in loss.qvalue_network.members])
    best = values.amin(0) if name == "sac" else values.mean(0)
    torch.testing.assert_close(out["loss_actor"], (0.3 * log_prob - best).mean())


def test_a_delayed_actor_chooses_the_actions_whose_value_a_value_network_fits():
    loss, batch = make("sac-value", alpha_init=0.3, loss_function="l2", delay_actor=True), make_batch(16)
    for one in loss.target_actor_network.parameters():
        one.data.add_(0.2)
    out = loss(batch)
    action, log_prob = acted(loss.target_actor_network, batch["observation"])
    values = torch.stack([q(one, batch["observation"], action) for one in loss.qvalue_network.members])
    expected = mse_loss(loss.value_network.module(batch["observation"]), (values.amin(0) - 0.3 * log_prob).detach())
    torch.testing.assert_close(out["loss_value"], expected)


def test_a_delayed_discrete_actor_gives_the_probabilities_of_next_actions():
    options = {"gamma": 0.9, "alpha_init": 0.3, "loss_function": "l2"}
    loss, batch = make("discrete-sac", **options, delay_actor=True), make_batch(16, name="discrete-sac")
    loss.target_actor_network[0].module.weight.data.mul_(-2)
    after, reward, alive = outcome(batch)
    log_pi = loss.target_actor_network[0].module(after).log_softmax(-1)
    worst = torch.min(*[one.module(after) for one in loss.target_qvalue_network.members])
    target = (reward + 0.9 * alive * (log_pi.exp() * (worst - 0.3 * log_pi)).sum(-1, keepdim=True)).detach()
    fit = [
        mse_loss(one.module(batch["observation"]).gather(-1, batch["action"].unsqueeze(-1)), target)
        for one in loss.qvalue_network.members
    ]
    torch.testing.assert_close(loss(batch)["loss_qvalue"], sum(fit))


@pytest.mark.parametrize("name", ["sac", "sac-value", "redq", "discrete-sac"])
def test_an_updater_moves_a_delayed_actor_and_nothing_trains_it(name):
    loss = make(name, delay_actor=True)
    assert not any(one.requires_grad for one in loss.target_actor_network.parameters())
    update = SoftUpdate(loss, tau=0.5)
    before = [one.clone() for one in loss.target_actor_network.parameters()]
    for one in loss.actor_network.parameters():
        one.data.add_(1.0)
    update.step()
    for old, new in zip(before, loss.target_actor_network.parameters(), strict=True):
        torch.testing.assert_close(new - old, torch.full_like(old, 0.5))


def errors(loss, batch, kind, **arguments):
    """``td_error`` of each step, ``[*B, 1]``, with an estimator."""
    loss.make_value_estimator(kind, **arguments)
    torch.manual_seed(5)
    loss.critic_loss(batch)
    return batch["td_error"].unsqueeze(-1)


MULTI_STEP = [(ValueEstimators.TD1, TD1Estimator, {}), (ValueEstimators.TDLambda, TDLambdaEstimator, {"lmbda": 0.8})]


@pytest.mark.parametrize(("kind", "estimator", "more"), MULTI_STEP, ids=["td1", "td-lambda"])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "tqc"])
def test_returns_of_several_steps_are_those_of_the_estimator(name, kind, estimator, more):
    loss, batch = make(name).double(), make_batch(3, 5, name=name, dtype=torch.float64)
    reward = batch["next", "reward"].add_(100)  # targets are above all values, which makes errors differences
    smallest = reward - errors(loss, batch, "td0", gamma=0.0)
    endless = batch.clone()
    endless["next", "terminated"].zero_()
    value = torch.zeros_like(reward)
    next_value = errors(loss, endless, "td0", gamma=1.0) + smallest - reward
    found = errors(loss, batch, kind, gamma=0.9, **more) + smallest
    batch.update({"state_value": value, "next": {"state_value": next_value}})
    torch.testing.assert_close(found, estimator(gamma=0.9, **more)(batch)["value_target"])


def test_returns_of_several_steps_need_time_order():
    loss, batch = make("sac"), make_batch(12)
    loss.make_value_estimator("td-lambda")
    batch["index"] = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ContractError, match="TDLambdaEstimator needs steps in time order"):
        loss(batch)
    with pytest.raises(UnsupportedError, match="TQCLoss cannot use TDLambdaEstimator"):
        make("tqc").make_value_estimator("td-lambda")


# ---- what all have in common


@pytest.mark.parametrize("name", NAMES)
def test_conformance(name):
    check_loss(make(name), make_batch(12, name=name))


@pytest.mark.parametrize("name", NAMES)
def test_gradients_reach_the_network_that_each_loss_trains_alone(name):
    loss, batch = make(name), make_batch(12, name=name)
    parts = {
        "loss_actor": "actor_network",
        "loss_value" if name in ("ddpg", "sac-value") else "loss_qvalue": {
            "ddpg": "value_network",
            "sac-value": "value_network",
        }.get(name, "qvalue_network"),
        **({} if name in ("ddpg", "td3") else {"loss_alpha": "log_alpha"}),
    }
    for term, trained in parts.items():
        loss.zero_grad()
        loss(batch)[term].backward()
        reached = {key.split(".")[0] for key, one in loss.named_parameters() if one.grad is not None and one.grad.any()}
        assert reached == {trained}, term
        assert not [key for key, one in loss.named_parameters() if key.startswith("target_")]


@pytest.mark.parametrize("name", NAMES)
def test_parts_are_those_of_the_whole(name):
    loss, batch = make(name), make_batch(12, name=name)
    torch.manual_seed(2)
    whole = loss(batch)
    torch.manual_seed(2)
    parts = {**loss.critic_loss(batch), **loss.actor_loss(batch)}
    assert set(parts) == set(whole.keys()) == set(loss.out_keys)
    for key, value in parts.items():
        torch.testing.assert_close(whole[key], value)


@pytest.mark.parametrize("name", NAMES)
def test_weights_masks_and_discounts_of_the_batch(name):
    loss, batch = make(name, reduction="none"), make_batch(6, name=name)
    critic_loss = "loss_value" if name == "ddpg" else "loss_qvalue"
    torch.manual_seed(2)
    plain = loss.critic_loss(batch)[critic_loss]
    weighted = batch.clone().set("priority_weight", torch.arange(6.0))
    torch.manual_seed(2)
    torch.testing.assert_close(loss.critic_loss(weighted)[critic_loss], plain * torch.arange(6.0))
    with pytest.raises(ShapeError, match="would broadcast"):
        loss.critic_loss(batch.clone().set("priority_weight", torch.ones(6, 1)))
    torch.manual_seed(2)
    discounted = loss.critic_loss(batch.clone().set("gamma", torch.full((6, 1), 0.99)))[critic_loss]
    torch.testing.assert_close(discounted, plain)
    torch.manual_seed(2)
    zero = loss.critic_loss(batch.clone().set("gamma", torch.zeros(6, 1)))
    torch.testing.assert_close(zero["target_value"], batch["next", "reward"].mean())
    stepped = batch.clone().set("steps_to_next_obs", torch.full((6, 1), 3))
    torch.manual_seed(2)
    by_steps = loss.critic_loss(stepped)[critic_loss]
    torch.manual_seed(2)
    cubed = loss.critic_loss(batch.clone().set("gamma", torch.full((6, 1), 0.99**3)))[critic_loss]
    torch.testing.assert_close(by_steps, cubed)
    if name == "crossq":
        return
    padded = batch.clone().set(("collector", "mask"), torch.tensor([True] * 4 + [False] * 2))
    padded["observation"][4:] = torch.nan
    torch.manual_seed(2)
    found = loss(padded)
    assert (found[critic_loss][4:] == 0).all()
    assert found["loss_actor"].isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_compiled_pickled_and_copied(name):
    loss, batch = make(name, reduction="sum"), make_batch(8, name=name)
    torch.manual_seed(2)
    expected = loss(batch.clone())
    for other in (deepcopy(loss), pickle.loads(pickle.dumps(loss)) if name not in ("sac", "redq") else deepcopy(loss)):
        torch.manual_seed(2)
        torch.testing.assert_close(other(batch.clone()), expected)
    torch.compiler.reset()
    compiled = torch.compile(loss, backend="eager", fullgraph=True)
    torch.manual_seed(2)
    found = compiled(batch.clone())
    for key in expected.keys():
        torch.testing.assert_close(found[key], expected[key])


@pytest.mark.parametrize("name", [name for name in NAMES if name != "crossq"])
def test_targets_follow(name):
    loss = make(name)
    update = SoftUpdate(loss, eps=0.9)
    before = {key: one.clone() for key, one in loss.state_dict().items()}
    for one in loss.parameters():
        one.data.add_(1.0)
    update.step()
    targets = {key: one for key, one in loss.state_dict().items() if key.startswith("target_")}
    assert targets
    for key, one in targets.items():
        torch.testing.assert_close(one - before[key], torch.full_like(one, 0.1) * (one.ndim > 0))


@pytest.mark.parametrize("size", [(1,), (2, 3)])
@pytest.mark.parametrize("name", NAMES)
def test_odd_batches(name, size):
    loss = make(name)
    out = loss(make_batch(*size, name=name))
    assert all(value.isfinite().all() and not value.shape for value in out.values())


# ---- arguments


def test_temperature_options():
    fixed = make("sac", fixed_alpha=True, alpha_init=0.2)
    out = fixed(make_batch(4))
    assert out["loss_alpha"] == 0
    assert "log_alpha" not in dict(fixed.named_parameters())
    bounded = make("sac", alpha_init=5.0, max_alpha=2.0)
    assert bounded(make_batch(4))["alpha"].item() == pytest.approx(2.0)
    chosen = make("sac", target_entropy=-7.0)
    batch = make_batch(4)
    torch.testing.assert_close(chosen(batch)["loss_alpha"], torch.tensor(0.0))  # log 1
    with pytest.raises(ArgumentError, match="alpha_init"):
        make("sac", alpha_init=0.0)
    with pytest.raises(ArgumentError, match="min_alpha must be at most max_alpha"):
        make("sac", min_alpha=2.0, max_alpha=1.0)
    with pytest.raises(ArgumentError, match="target_entropy"):
        make("sac", target_entropy="high")


@pytest.mark.parametrize(
    ("loss", "others"),
    [
        (SACLoss, {}),
        (REDQLoss, {}),
        (CrossQLoss, {"delay_actor", "delay_qvalue"}),
        (TQCLoss, {"delay_actor", "loss_function"}),
        (DiscreteSACLoss, {"action_spec"}),
    ],
)
def test_signatures_list_shared_options_and_calls_reject_others(loss, others):
    shared = {"alpha_init", "loss_function", "delay_actor", "delay_qvalue", "gamma", "action_spec"}
    parameters = inspect.signature(loss).parameters
    assert shared & {*parameters} == shared - {*others}
    assert parameters["gamma"].default == 0.99
    for name in others:
        with pytest.raises(UnknownArgumentError, match=f"{loss.__name__} got an unexpected keyword argument '{name}'"):
            loss(nn.Identity(), nn.Identity(), **{name: None})


@pytest.mark.parametrize("name", ["sac", "redq", "crossq", "tqc", "discrete-sac"])
def test_the_target_entropy_is_the_number_that_is_used(name):
    used = 0.98 * math.log(N) if name == "discrete-sac" else -float(ACT)
    leaf = Bounded(-1, 1, shape=(ACT,))
    known = [{"num_actions": N}] if name == "discrete-sac" else [{"action_spec": leaf}]
    if name != "discrete-sac":
        known.append({"action_spec": Composite(action=Bounded(-1, 1, shape=(5, ACT)), shape=(5,))})
    for options in known:
        assert make(name, **options).target_entropy == pytest.approx(used)
    loss = make(name)
    names = {*loss.state_dict()}
    out = loss(make_batch(4, name=name))
    assert loss.target_entropy == pytest.approx(used)
    assert {*loss.state_dict()} == names
    expected = out["entropy"] - used
    (slope,) = torch.autograd.grad(out["loss_alpha"], loss.log_alpha)
    torch.testing.assert_close(slope, expected)
    loss.target_entropy = -7.0
    assert loss.target_entropy == -7
    (slope,) = torch.autograd.grad(loss(make_batch(4, name=name))["loss_alpha"], loss.log_alpha)
    torch.testing.assert_close(slope, out["entropy"] + 7)
    actor = policy()
    actor.spec = Composite(action=leaf)
    assert SACLoss(actor, critic()).target_entropy == -ACT
    compiled = torch.compile(make(name), fullgraph=True, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(make_batch(4, name=name))["loss_alpha"], out["loss_alpha"])
    assert compiled.target_entropy == pytest.approx(used)


def test_critics_are_one_with_copies_or_a_list():
    loss = make("sac")
    one, two = loss.qvalue_network.members
    assert (one.module.net[0].weight != two.module.net[0].weight).any()
    given = [critic(), critic(), critic()]
    assert list(SACLoss(policy(), given, num_qvalue_nets=3).qvalue_network.members) == given
    with pytest.raises(ArgumentError, match="num_qvalue_nets must be the number of networks, got 3 for 2"):
        SACLoss(policy(), given[:2], num_qvalue_nets=3)

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, observation, action):
            return self.weight * observation[..., :1]

    with pytest.raises(ArgumentError, match="no reset_parameters"):
        SACLoss(policy(), TensorDictModule(Own(), ["observation", "action"], ["state_action_value"]))
    with pytest.raises(ContractError, match="without in_keys"):
        SACLoss(policy(), nn.Linear(3, 1))


def test_bounds_of_td3():
    spec = Bounded(-2.0, 2.0, shape=(ACT,))
    loss = TD3Loss(deterministic(), critic(), action_spec=spec)
    assert loss.high.tolist() == [2.0, 2.0]
    with pytest.raises(ArgumentError, match="action_spec, or bounds"):
        TD3Loss(deterministic(), critic())
    with pytest.raises(ArgumentError, match="bounds must be ascending"):
        make("td3", bounds=(2.0, 1.0))
    with pytest.raises(ArgumentError, match="noise_clip"):
        make("td3", noise_clip=-1.0)


def test_wrong_networks_and_layouts():
    actor, _ = discrete()
    of_continuous = SACLoss(actor, critic())
    with pytest.raises(UnsupportedError, match="use DiscreteSACLoss"):
        of_continuous(make_batch(4))
    _, values = discrete()
    with pytest.raises(UnsupportedError, match="use SACLoss"):
        DiscreteSACLoss(policy(), values)(make_batch(4, name="discrete-sac"))
    with pytest.raises(ContractError, match="state_action_value"):
        _ = SACLoss(policy(), TensorDictModule(Joined(), ["observation", "action"], ["value"])).in_keys
    wrong = make_batch(4)
    wrong["next", "reward"] = wrong["next", "reward"].squeeze(-1)
    with pytest.raises((ShapeError, ContractError)):
        make("sac")(wrong)
    with pytest.raises(ContractError, match="'observation'"):
        make("ddpg")(make_batch(4).exclude("observation"))
    with pytest.raises(ArgumentError, match="sub_sample_len"):
        make("redq", sub_sample_len=0)
    with pytest.raises(ShapeError, match="Independent"):
        SACLoss(policy(Normal), critic())(make_batch(4))


@pytest.mark.parametrize("kind", [ValueEstimators.GAE, ValueEstimators.MAGAE, ValueEstimators.VTrace])
@pytest.mark.parametrize("name", NAMES)
def test_estimators_that_a_loss_cannot_use_are_errors_that_torchrl_users_catch(name, kind):
    loss = make(name)
    before = loss.value_estimator
    with pytest.raises(UnsupportedError, match="cannot use") as caught:
        loss.make_value_estimator(kind)
    assert isinstance(caught.value, NotImplementedError)
    assert loss.value_estimator is before


def test_several_actions_of_a_composite_policy():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(OBS + 2, 1)

        def forward(self, observation, move, turn):
            return self.net(torch.cat([observation, move, turn], -1))

    body = TensorDictModule(
        nn.Sequential(nn.Linear(OBS, 2), NormalParamExtractor()),
        ["observation"],
        [("params", "move", "loc"), ("params", "move", "scale")],
    )
    other = TensorDictModule(
        nn.Sequential(nn.Linear(OBS, 2), NormalParamExtractor()),
        ["observation"],
        [("params", "turn", "loc"), ("params", "turn", "scale")],
    )
    head = ProbabilisticTensorDictModule(
        ["params"],
        ["move", "turn"],
        distribution_class=CompositeDistribution,
        distribution_kwargs={"distribution_map": {"move": Gauss, "turn": Gauss}},
    )
    actor = ProbabilisticTensorDictSequential(TensorDictSequential(body, other), head)
    value = TensorDictModule(Two(), ["observation", "move", "turn"], ["state_action_value"])
    loss = SACLoss(actor, value)
    batch = make_batch(8).exclude("action")
    batch["move"], batch["turn"] = torch.randn(8, 1), torch.randn(8, 1)
    out = loss(batch)
    (out["loss_actor"] + out["loss_qvalue"] + out["loss_alpha"]).backward()
    assert all(one.grad is not None for one in actor.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_windows_of_a_replay_buffer_count_in_their_learning_part(name):
    loss, batch = make(name), make_batch(4, 6, name=name)
    learning = (torch.arange(6) >= 2).expand(4, 6)
    valid = torch.ones(4, 6, dtype=torch.bool)
    valid[3, 4:] = False
    windows, masked = batch.clone(), batch.clone()
    windows.update({"learning_mask": learning, "validity_mask": valid})
    windows["next", "reward"][~valid] = windows["observation"][~valid] = torch.nan
    masked["collector", "mask"] = learning & valid
    outs = []
    for data in (windows, masked):
        torch.manual_seed(0)
        outs.append(dict(loss(data).items()))
    torch.testing.assert_close(*outs)


@pytest.mark.parametrize("name", NAMES)
def test_an_observation_called_gamma_is_no_discount(name):
    loss, batch = make(name), make_batch(8, name=name)
    torch.manual_seed(0)
    expected = dict(loss(batch.clone()).items())
    for key in ("gamma", "steps_to_next_obs", "priority_weight"):
        batch[key] = batch["next", key] = torch.rand(8, 1)
    torch.manual_seed(0)
    torch.testing.assert_close(dict(loss(batch).items()), expected)


def test_the_noise_of_td3_has_a_width_for_each_dimension():
    low, high = torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 100.0])
    half = (high - low) / 2
    seen = []

    class Watching(Joined):
        def forward(self, observation, action):
            seen.append(action.detach())
            return super().forward(observation, action / half)

    actor = TensorDictModule(lambda x: torch.tensor([0.0, 50.0]).expand(*x.shape[:-1], 2), ["observation"], ["action"])
    network = TensorDictModule(Watching(), ["observation", "action"], ["state_action_value"])
    loss = TD3Loss(
        actor, [network, network], bounds=(low, high), policy_noise=0.2 * half, noise_clip=0.5 * half, delay_actor=False
    )
    torch.manual_seed(0)
    batch = make_batch(4000)
    seen.clear()
    loss.critic_loss(batch)
    noise = next((one - torch.tensor([0.0, 50.0])) / half for one in seen if not one.equal(batch["action"]))
    torch.testing.assert_close(noise.std(0), torch.full((2,), 0.2), atol=0.01, rtol=0)
    assert noise.abs().amax(0).le(0.5 + 1e-6).all()
    assert "policy_noise" not in loss.state_dict()
    for wrong in (torch.tensor([0.1, -1.0]), torch.ones(3)):
        with pytest.raises(ArgumentError, match=r"policy_noise=.*one for each dimension"):
            TD3Loss(actor, network, bounds=(low, high), policy_noise=wrong, delay_actor=False)
    three = torch.ones(3)
    for name, given in (
        ("policy_noise", {"bounds": (-1.0, 1.0), "policy_noise": three}),
        ("noise_clip", {"bounds": (-1.0, 1.0), "noise_clip": three}),
        ("low", {"bounds": (-three, three)}),
    ):
        loss = TD3Loss(actor, network, delay_actor=False, **given)
        with pytest.raises(ShapeError, match=rf"TD3Loss got {name} of shape \[3\] for actions of shape \[8, 2\]"):
            loss.critic_loss(make_batch(8))


class Heads(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.heads = nn.ModuleList(nn.Sequential(nn.Linear(OBS, 2), NormalParamExtractor()) for _ in range(count))

    def forward(self, observation):
        return tuple(part for head in self.heads for part in head(observation))


class OfParts(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.net = nn.Linear(OBS + count, 1)

    def forward(self, observation, *actions):
        return self.net(torch.cat([observation, *actions], -1))


@pytest.mark.parametrize("parts", [["move"], ["move", "turn"]])
@pytest.mark.parametrize("kind", [SACLoss, REDQLoss])
def test_a_composite_distribution_may_have_one_part(kind, parts):
    torch.manual_seed(0)
    keys = {name: ("action", name) for name in parts}
    params = [("params", name, entry) for name in parts for entry in ("loc", "scale")]
    body = TensorDictModule(Heads(len(parts)), ["observation"], params)
    maps = {"distribution_map": dict.fromkeys(parts, Gauss), "name_map": keys}
    head = ProbabilisticTensorDictModule(
        ["params"], list(keys.values()), distribution_class=CompositeDistribution, distribution_kwargs=maps
    )
    actor = ProbabilisticTensorDictSequential(body, head)
    network = TensorDictModule(OfParts(len(parts)), ["observation", *keys.values()], ["state_action_value"])
    batch = make_batch(8).exclude("action")
    for key in keys.values():
        batch[key] = torch.rand(8, 1)
    out = kind(actor, network)(batch)
    assert all(value.isfinite() for value in out.values())
    sum(value for name, value in out.items() if name.startswith("loss")).backward()


def test_one_key_may_name_all_parts_of_an_action():
    torch.manual_seed(0)

    class Whole(OfParts):
        def forward(self, observation, action):
            return super().forward(observation, action["move"], action["turn"])

    params = [("params", name, entry) for name in ("move", "turn") for entry in ("loc", "scale")]
    maps = {"distribution_map": dict.fromkeys(("move", "turn"), Gauss)}
    body = TensorDictModule(Heads(2), ["observation"], params)
    losses = []
    for keys, network in ((["move", "turn"], OfParts(2)), (["action"], Whole(2))):
        head = ProbabilisticTensorDictModule(
            ["params"], keys, distribution_class=CompositeDistribution, distribution_kwargs=maps
        )
        critic = TensorDictModule(network, ["observation", *keys], ["state_action_value"])
        losses.append(SACLoss(ProbabilisticTensorDictSequential(body, head), critic))
    apart, whole = losses
    whole.load_state_dict(apart.state_dict())
    batch = make_batch(8).exclude("action")
    parts = TensorDict(move=torch.rand(8, 1), turn=torch.rand(8, 1), batch_size=[8])
    torch.testing.assert_close(whole(batch.clone().set("action", parts)), apart(batch.clone().update(parts)))


def test_the_target_entropy_is_that_of_the_legal_actions():
    legal = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1]]).bool().repeat(4, 1)

    def uniform(x, mask):
        return (x @ torch.zeros(OBS, N)).masked_fill(~mask, -torch.inf)

    body = TensorDictModule(uniform, ["observation", "mask"], ["logits"])
    head = ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=Categorical)
    loss = DiscreteSACLoss(ProbabilisticTensorDictSequential(body, head), discrete()[1], target_entropy_weight=1.0)
    batch = make_batch(12, name="discrete-sac")
    batch["mask"] = batch["next", "mask"] = legal
    batch["action"] = torch.zeros(12, dtype=torch.int64)
    out = loss(batch)  # the policy is uniform: its entropy is the largest
    torch.autograd.grad(out["loss_alpha"], loss.log_alpha)
    (slope,) = torch.autograd.grad(loss(batch)["loss_alpha"], loss.log_alpha)
    torch.testing.assert_close(slope, torch.tensor(0.0).expand_as(slope), atol=1e-6, rtol=0)
    torch.testing.assert_close(out["entropy"], legal.sum(-1).log().mean())
