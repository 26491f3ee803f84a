"""Losses that imitate: decision transformers, GAIL, diffusion, action chunks; against their formulas written out."""

import math

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
from torch.distributions import Independent, Normal, TransformedDistribution, kl_divergence
from torch.distributions.transforms import TanhTransform

from rl.core.errors import ArgumentError, ContractError, ShapeError
from rl.objectives import ACTLoss, DiffusionBCLoss, DTLoss, GAILLoss, OnlineDTLoss
from rl.testing import check_loss

B, T, OBS, ACT, CHUNK, STEPS = 6, 5, 3, 2, 4, 10


def normal(loc, scale):
    return Independent(Normal(loc, scale), 1)


def squashed(loc, scale):
    return TransformedDistribution(normal(loc, scale), TanhTransform(cache_size=1))


class Causal(nn.Module):
    """The output of a step sees the actions before it alone, as that of a decision transformer does."""

    def __init__(self, width):
        super().__init__()
        self.net = nn.Linear(OBS + ACT + 1, width)

    def forward(self, observation, action, return_to_go):
        before = torch.cat((torch.zeros_like(action[..., :1, :]), action[..., :-1, :]), -2).cumsum(-2)
        return self.net(torch.cat((observation, before, return_to_go), -1))


KEYS = ["observation", "action", "return_to_go"]


def stochastic(distribution=normal):
    net = TensorDictModule(Both(), KEYS, ["loc", "scale"])
    head = ProbabilisticTensorDictModule(["loc", "scale"], ["action"], distribution_class=distribution)
    return ProbabilisticTensorDictSequential(net, head)


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.split = Causal(2 * ACT), NormalParamExtractor()

    def forward(self, *x):
        return self.split(self.net(*x))


def sequences():
    action = torch.rand(B, T, ACT) - 0.5
    entries = {"observation": torch.randn(B, T, OBS), "action": action, "return_to_go": torch.randn(B, T, 1)}
    return TensorDict(entries, batch_size=[B, T])


def joined(observation, action):
    return torch.cat((observation, action.float()), -1)


def discriminator():
    both = TensorDictModule(joined, ["observation", "action"], ["both"])
    net = nn.Sequential(nn.Linear(OBS + ACT, 8), nn.Tanh(), nn.Linear(8, 1))
    return TensorDictSequential(both, TensorDictModule(net, ["both"], ["d_logits"]))


def steps(action=None):
    entries = {"observation": torch.randn(B, OBS), "collector_observation": torch.randn(B, OBS)}
    entries["action"] = torch.randn(B, ACT) if action is None else action
    entries["collector_action"] = torch.randn(B, ACT) if action is None else action.flip(0)
    return TensorDict(entries, batch_size=[B])


class Process(nn.Module):
    num_steps = STEPS

    def __init__(self, size=ACT):
        super().__init__()
        self.score_network = nn.Linear(size + OBS + 1, size)
        self.register_buffer("kept", (1 - torch.linspace(1e-3, 0.3, STEPS)).cumprod(0))

    def add_noise(self, action, t):
        clean = action.flatten(t.ndim)
        noise, kept = torch.randn_like(clean), self.kept[t].unsqueeze(-1)
        return kept.sqrt() * clean + (1 - kept).sqrt() * noise, noise


def diffusion(size=ACT):
    return TensorDictModule(Process(size), ["observation"], ["action"])


class Plan(nn.Module):
    def __init__(self):
        super().__init__()
        self.plan, self.style = nn.Linear(OBS + 2, CHUNK * ACT), nn.Linear(CHUNK * ACT, 4)

    def forward(self, observation, chunk):
        mean, log_variance = self.style(chunk.flatten(-2)).chunk(2, -1)
        style = mean + (log_variance / 2).exp() * torch.randn_like(mean)
        return self.plan(torch.cat((observation, style), -1)).unflatten(-1, (CHUNK, ACT)), mean, log_variance


def planner():
    return TensorDictModule(Plan(), ["observation", "action_chunk"], ["action_pred", "mu", "log_var"])


def chunks():
    return TensorDict(observation=torch.randn(B, OBS), action_chunk=torch.randn(B, CHUNK, ACT), batch_size=[B])


LOSSES = {
    "DTLoss": (lambda: DTLoss(TensorDictModule(Causal(ACT), KEYS, ["action"])), sequences, ()),
    "OnlineDTLoss": (lambda: OnlineDTLoss(stochastic()), sequences, ()),
    "GAILLoss": (lambda: GAILLoss(discriminator()), steps, ()),
    "penalized GAILLoss": (lambda: GAILLoss(discriminator(), use_grad_penalty=True), steps, ()),
    "DiffusionBCLoss": (lambda: DiffusionBCLoss(diffusion()), steps, ()),
    "ACTLoss": (lambda: ACTLoss(planner()), chunks, ("loss_reconstruction", "loss_kl")),
}


def seeded(loss, data, seed=3):
    torch.manual_seed(seed)
    return loss(data)


every = pytest.mark.parametrize("name", LOSSES)


@every
def test_a_loss_conforms(name):
    torch.manual_seed(0)
    make, data, detached = LOSSES[name]
    check_loss(make(), data(), detached=detached)


@every
def test_one_graph(name):
    torch.compiler.reset()
    torch.manual_seed(0)
    make, data, _ = LOSSES[name]
    loss, batch = make(), data()
    for options in ({}, {"mask": True}):
        if options:
            batch["collector", "mask"] = torch.arange(B * batch[0].numel()).view(batch.shape) % 3 > 0
        expected = seeded(loss, batch)
        found = torch.compile(loss, fullgraph=True, backend="eager")
        torch.testing.assert_close(seeded(found, batch), expected)
        first, second = (
            torch.autograd.grad(
                sum(value for value in out.values() if value.requires_grad), list(loss.parameters()), allow_unused=True
            )
            for out in (seeded(found, batch), expected)
        )
        torch.testing.assert_close(first, second)


@every
def test_padding_is_left_out(name):
    """With padding at the end of each sequence, or of the batch, the loss is that of the valid part."""
    torch.manual_seed(0)
    make, data, _ = LOSSES[name]
    loss, batch = make(), data()
    last = batch.ndim - 1
    keep = batch.shape[-1] - 2
    batch["collector", "mask"] = (torch.arange(batch.shape[-1]) < keep).expand(batch.shape)
    for value in batch.exclude("collector").values():
        value.narrow(last, keep, 2).fill_(torch.nan)
    out = loss(batch)
    out[loss.out_keys[0]].backward()
    assert all(bool(p.grad.isfinite().all()) for p in loss.parameters() if p.grad is not None)
    if name == "DTLoss":
        valid = batch.narrow(last, 0, keep).exclude("collector").auto_batch_size_(2)
        torch.testing.assert_close(out["loss"], loss(valid)["loss"])


def test_dt_is_a_distance():
    torch.manual_seed(0)
    actor, data = TensorDictModule(Causal(ACT), KEYS, ["action"]), sequences()
    expected = (actor.module(*[data[key] for key in KEYS]) - data["action"]).square().mean()
    torch.testing.assert_close(DTLoss(actor)(data)["loss"], expected)
    each = DTLoss(actor, loss_function="l1", reduction="none")(data)["loss"]
    assert each.shape == (B, T)
    renamed = TensorDictModule(actor.module, KEYS, ["move"])
    loss = DTLoss(actor)
    loss.actor_network = renamed
    loss.set_keys(action_pred="move")
    torch.testing.assert_close(loss(data)["loss"], expected)
    with pytest.raises(ShapeError, match=r"got actions of shape \(6, 5, 3\) from the actor"):
        DTLoss(TensorDictModule(Causal(3), KEYS, ["action"]))(data)
    with pytest.raises(ContractError, match="return_to_go"):
        DTLoss(actor)(data.exclude("return_to_go"))


@pytest.mark.parametrize("distribution", [normal, squashed])
def test_online_dt_is_its_formula(distribution):
    torch.manual_seed(0)
    policy, data = stochastic(distribution), sequences()
    loss = OnlineDTLoss(policy, alpha_init=0.3, target_entropy=-1.5, samples_mc_entropy=3)
    dist = distribution(*policy[0].module(*[data[key] for key in KEYS]))
    torch.manual_seed(3)
    entropy = dist.entropy().mean() if distribution is normal else -dist.log_prob(dist.rsample((3,))).mean()
    out = seeded(loss, data)
    torch.testing.assert_close(out["loss_log_likelihood"], -dist.log_prob(data["action"]).mean())
    torch.testing.assert_close(out["loss_entropy"], -0.3 * entropy)
    torch.testing.assert_close(out["loss_alpha"], 0.3 * (entropy.detach() + 1.5))
    torch.testing.assert_close(out["entropy"], entropy.detach())
    out["loss_alpha"].backward()
    torch.testing.assert_close(loss.log_alpha.grad, 0.3 * (entropy.detach() + 1.5))


def test_the_temperature_of_online_dt():
    data = sequences()
    automatic = OnlineDTLoss(stochastic(), alpha_init=2.0)
    torch.manual_seed(0)
    out = automatic(data)
    torch.testing.assert_close(out["loss_alpha"], 2.0 * (out["entropy"] + ACT))
    assert automatic.target_entropy == -ACT
    fixed = OnlineDTLoss(stochastic(), fixed_alpha=True)
    assert fixed(data)["loss_alpha"] == 0
    assert "log_alpha" not in dict(fixed.named_parameters())
    assert math.isclose(OnlineDTLoss(stochastic(), alpha_init=5.0, max_alpha=1.0).alpha, 1.0)
    for options in ({"alpha_init": 0}, {"alpha_init": None}, {"min_alpha": 2, "max_alpha": 1}, {"target_entropy": "x"}):
        with pytest.raises(ArgumentError, match="OnlineDTLoss: "):
            OnlineDTLoss(stochastic(), **options)


def test_gail_is_cross_entropy_and_its_reward():
    torch.manual_seed(0)
    net, data = discriminator(), steps()
    loss = GAILLoss(net)
    real = net(data.select("observation", "action"))["d_logits"]
    other = TensorDict(observation=data["collector_observation"], action=data["collector_action"], batch_size=[B])
    fake = net(other.clone())["d_logits"]
    entropy = nn.functional.binary_cross_entropy
    expected = entropy(real.sigmoid(), torch.ones(B, 1)) + entropy(fake.sigmoid(), torch.zeros(B, 1))
    out = loss(data)
    torch.testing.assert_close(out["loss"], expected)
    assert list(out.keys()) == ["loss"]
    reward = loss.reward(other)
    torch.testing.assert_close(reward, -(1 - fake.sigmoid()).log())
    assert not reward.requires_grad
    assert loss.reward(other.reshape(2, 3)).shape == (2, 3, 1)


def test_the_penalty_of_gail_is_its_formula():
    torch.manual_seed(0)
    net, data = discriminator(), steps()
    plain = GAILLoss(net)(data)["loss"]
    out = seeded(GAILLoss(net, use_grad_penalty=True, gp_lambda=2.0), data)
    torch.manual_seed(3)
    share = torch.rand(B)
    total = 0.0
    for row in range(B):
        points = [
            (data[role][row] + share[row] * (data[f"collector_{role}"][row] - data[role][row])).requires_grad_()
            for role in ("observation", "action")
        ]
        logit = net(TensorDict(observation=points[0], action=points[1]))["d_logits"]
        gradient = torch.cat(torch.autograd.grad(logit.sum(), points, create_graph=True))
        total = total + 2.0 * (gradient.norm() - 1) ** 2 / B
    torch.testing.assert_close(out["gp_loss"], total.detach())
    torch.testing.assert_close(out["loss"], plain + total)
    parameters = list(net.parameters())
    for mine, theirs in zip(
        torch.autograd.grad(out["loss"], parameters),
        torch.autograd.grad(plain + total, parameters, allow_unused=True, materialize_grads=True),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


def test_gail_takes_one_hot_actions_and_refuses_what_does_not_fit():
    torch.manual_seed(0)
    one_hot = nn.functional.one_hot(torch.randint(ACT, (B,)), ACT)
    assert GAILLoss(discriminator(), use_grad_penalty=True)(steps(one_hot))["gp_loss"] > 0
    states = TensorDictModule(nn.Linear(OBS, 1), ["observation"], ["d_logits"])
    assert GAILLoss(states).in_keys == ["observation", "collector_observation"]
    with pytest.raises(ContractError, match="the discriminator reads 'seen'"):
        GAILLoss(TensorDictModule(nn.Linear(OBS, 1), ["seen"], ["d_logits"]))
    with pytest.raises(ArgumentError, match="gp_lambda must be at least 0"):
        GAILLoss(states, gp_lambda=-1)
    data = steps()
    data["collector_action"] = torch.zeros(B, 3)
    with pytest.raises(ShapeError, match="pass as many steps of both"):
        GAILLoss(discriminator())(data)


def test_diffusion_is_its_formula():
    torch.manual_seed(0)
    actor, data = diffusion(CHUNK * ACT), steps()
    data["action"] = torch.randn(B, CHUNK, ACT)
    out = seeded(DiffusionBCLoss(actor, reduction="none"), data)
    torch.manual_seed(3)
    t, process = torch.randint(STEPS, (B,)), actor.module
    noise = torch.randn(B, CHUNK * ACT)
    for row in range(B):
        kept = process.kept[t[row]]
        noisy = kept.sqrt() * data["action"][row].flatten() + (1 - kept).sqrt() * noise[row]
        found = process.score_network(torch.cat((noisy, data["observation"][row], t[row].float().unsqueeze(0))))
        torch.testing.assert_close(out["loss_diffusion_bc"][row], (found - noise[row]).square().mean())
    with pytest.raises(ArgumentError, match="whose module lacks num_steps, add_noise, score_network"):
        DiffusionBCLoss(planner())


def test_act_is_its_formula():
    torch.manual_seed(0)
    net, data = planner(), chunks()
    torch.manual_seed(3)
    action, mean, log_variance = net.module(data["observation"], data["action_chunk"])
    out = seeded(ACTLoss(net, kl_weight=2.5), data)
    distance = (action - data["action_chunk"]).abs().mean()
    style, prior = (normal(mean, (log_variance / 2).exp()), normal(torch.zeros(B, 2), torch.ones(B, 2)))
    divergence = kl_divergence(style, prior).mean()
    torch.testing.assert_close(out["loss_reconstruction"], distance.detach())
    torch.testing.assert_close(out["loss_kl"], divergence.detach())
    torch.testing.assert_close(out["loss_act"], distance + 2.5 * divergence)


def test_act_does_not_imitate_what_lies_after_an_episode():
    torch.manual_seed(0)
    net, data = planner(), chunks()
    beyond = data["action_is_pad"] = torch.arange(CHUNK).expand(B, CHUNK) > torch.randint(CHUNK, (B, 1))
    torch.manual_seed(3)
    action, _, _ = net.module(data["observation"], data["action_chunk"])
    out = seeded(ACTLoss(net), data)
    distance = ((action - data["action_chunk"]).abs().mean(-1) * ~beyond).mean()
    torch.testing.assert_close(out["loss_reconstruction"], distance.detach())
    loss = ACTLoss(net)
    loss.set_keys(action_chunk=("vla_action", "chunk"))
    moved = data.exclude("action_chunk").set(("vla_action", "chunk"), data["action_chunk"])
    torch.testing.assert_close(seeded(loss, moved), out)
    with pytest.raises(ShapeError, match="action_is_pad"):
        ACTLoss(net)(data.set("action_is_pad", beyond[:, :2]))
    with pytest.raises(ArgumentError, match="kl_weight must be at least 0"):
        ACTLoss(net, kl_weight=-1)
    with pytest.raises(ContractError, match="expected observations and 'action_chunk'"):
        ACTLoss(TensorDictModule(Plan(), ["observation", "chunk"], ["action_pred", "mu", "log_var"]))


@pytest.mark.parametrize("name", ["GAILLoss", "penalized GAILLoss", "DiffusionBCLoss", "ACTLoss"])
def test_windows_of_a_replay_buffer_count_in_their_learning_part(name):
    torch.manual_seed(0)
    make, data, _ = LOSSES[name]
    loss, windows = make(), data()
    masked = windows.clone()
    windows["learning_mask"] = torch.arange(len(windows)) % 3 > 0
    windows["validity_mask"] = torch.arange(len(windows)) < len(windows) - 2
    masked["collector", "mask"] = windows["learning_mask"] & windows["validity_mask"]
    torch.testing.assert_close(seeded(loss, windows), seeded(loss, masked))
