"""KLPENPPOLoss: the penalty, its weight, and where it has gradients."""

import math
from typing import ClassVar

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    CompositeDistribution,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from torch import nn
from torch.distributions import Categorical, Distribution, Independent, Normal

from rl.core.errors import ArgumentError, ContractError, ShapeError
from rl.objectives import KLPENPPOLoss, PPOLoss
from rl.objectives.functional import adapted_penalty, penalized_surrogate
from rl.testing import check_loss


class DiagonalNormal(Independent):
    def __init__(self, loc, scale):
        super().__init__(Normal(loc, scale), 1)


class Opaque(Distribution):
    """A normal distribution that does not say so: its divergence has no formula."""

    arg_constraints: ClassVar[dict] = {}

    def __init__(self, loc, scale):
        self.inner = DiagonalNormal(loc, scale)
        super().__init__(loc.shape[:-1], loc.shape[-1:])
        self.sample, self.log_prob, self.entropy = self.inner.sample, self.inner.log_prob, self.inner.entropy

    @property
    def deterministic_sample(self):
        return self.inner.mean


class Parameters(nn.Module):
    def __init__(self):
        super().__init__()
        self.loc, self.log_scale = nn.Linear(3, 2), nn.Parameter(torch.zeros(2))

    def forward(self, x):
        loc = self.loc(x)
        return loc, self.log_scale.exp().expand_as(loc)


def make(kind=DiagonalNormal, **options):
    torch.manual_seed(0)
    if kind is Categorical:
        body, names = TensorDictModule(nn.Linear(3, 4), ["observation"], ["logits"]), ["logits"]
    else:
        body, names = TensorDictModule(Parameters(), ["observation"], ["loc", "scale"]), ["loc", "scale"]
    head = ProbabilisticTensorDictModule(names, ["action"], distribution_class=kind, return_log_prob=True)
    critic = TensorDictModule(nn.Linear(3, 1), ["observation"], ["state_value"])
    actor = ProbabilisticTensorDictSequential(body, head)
    loss = KLPENPPOLoss(actor, critic, **options)
    g = torch.Generator().manual_seed(1)
    batch = actor(TensorDict(observation=torch.randn(12, 3, generator=g), batch_size=[12])).detach()
    batch["advantage"], batch["value_target"] = (torch.randn(12, 1, generator=g) for _ in range(2))
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=g))
    return loss, batch


def gaussian_kl(old, new):
    """Sum over dimensions of the divergence of normal distributions, in Python numbers."""
    return sum(
        math.log(s1 / s0) + (s0**2 + (m0 - m1) ** 2) / (2 * s1**2) - 0.5
        for (m0, s0), (m1, s1) in zip(old, new, strict=True)
    )


def test_values_and_gradients_equal_a_loop_by_hand():
    loss, batch = make(beta=3.0, reduction="none")
    loss.eval()
    out = loss(batch)
    network = loss.actor_network[0].module
    expected = []
    for step in batch:
        loc, scale = network(step["observation"])
        pairs = zip(loc.tolist(), scale.tolist(), strict=True)
        kl = gaussian_kl(zip(step["loc"].tolist(), step["scale"].tolist(), strict=True), pairs)
        log_prob = sum(
            -0.5 * ((a - m) / s) ** 2 - math.log(s) - 0.5 * math.log(2 * math.pi)
            for a, m, s in zip(step["action"].tolist(), loc.tolist(), scale.tolist(), strict=True)
        )
        ratio = math.exp(log_prob - step["action_log_prob"].item())
        expected.append((-ratio * step["advantage"].item() + 3 * kl, kl))
    objective, kl = torch.tensor(expected).unbind(-1)
    torch.testing.assert_close(out["loss_objective"].detach(), objective, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(out["kl"], kl.mean(), rtol=1e-4, atol=1e-6)
    # The penalty adds beta times the gradient of the divergence to that of the surrogate.
    weights = list(network.parameters())
    old = DiagonalNormal(batch["loc"], batch["scale"])
    penalty = torch.distributions.kl_divergence(old, DiagonalNormal(*network(batch["observation"]))).sum()
    plain = PPOLoss(loss.actor_network, loss.critic_network, reduction="none")(batch)["loss_objective"].sum()
    ours = torch.autograd.grad(out["loss_objective"].sum(), weights)
    torch.testing.assert_close(ours, torch.autograd.grad(plain + 3 * penalty, weights))


def test_a_divergence_without_formula_is_estimated():
    loss, batch = make(Opaque, samples_mc_kl=20000)
    found = loss.eval()(batch)["kl"]
    old, new = (
        DiagonalNormal(*p) for p in ((batch["loc"], batch["scale"]), loss.actor_network[0].module(batch["observation"]))
    )
    exact = torch.distributions.kl_divergence(old, new).mean()
    torch.testing.assert_close(found, exact.detach(), rtol=0.1, atol=1e-3)


@pytest.mark.parametrize(
    ("kl", "expected"), [(0.016, 3.0), (0.015, 1.0), (0.0067, 1.0), (0.0066, 0.25), (0.0, 0.25), (math.nan, 1.0)]
)
def test_the_weight_follows_section_4(kl, expected):
    found = adapted_penalty(torch.tensor(1.0), torch.tensor(kl), 0.01, 3.0, 0.25)
    assert found.item() == expected


def test_the_weight_changes_in_training_mode_and_is_saved():
    loss, batch = make(dtarg=1e-6, beta=0.5, increment=4.0)
    out = loss(batch)
    assert (out["beta"].item(), loss.beta.item()) == (0.5, 2.0)
    (out["loss_objective"] + out["loss_critic"] + out["loss_entropy"]).backward()
    assert loss.eval()(batch)["beta"].item() == loss(batch)["beta"].item() == 2.0
    again, _ = make()
    again.load_state_dict(loss.state_dict())
    assert again.beta.item() == 2.0


def test_compiled_code_adapts_the_weight():
    loss, batch = make(dtarg=1e-6)
    out = torch.compile(loss, fullgraph=True, backend="aot_eager")(batch)
    out["loss_objective"].backward()
    assert (out["beta"].item(), loss.beta.item()) == (1.0, 2.0)


@pytest.mark.parametrize("kind", [DiagonalNormal, Categorical])
def test_the_loss_conforms(kind):
    loss, batch = make(kind)
    loss.eval()
    parameters = ["logits"] if kind is Categorical else ["loc", "scale"]
    assert loss.in_keys == ["observation", "action", "action_log_prob", *parameters, "advantage", "value_target"]
    check_loss(loss, batch, frozen=parameters)
    assert loss.out_keys[-2:] == ["kl", "beta"]


def test_log_ratios_of_80_zero_advantages_one_element_and_padding_stay_finite():
    loss, batch = make()
    batch["action_log_prob"] = torch.where(torch.arange(12) < 6, 80.0, -80.0)
    for one in (batch, batch.clone().set("advantage", torch.zeros(12, 1)), batch[:1]):
        out = loss(one)
        loss.zero_grad()
        out["loss_objective"].backward()
        assert out["loss_objective"].isfinite()
        assert all(p.grad.isfinite().all() for p in loss.actor_network.parameters())
    loss, batch = make(diagnostics=False)
    expected = loss.eval()(batch[:8])
    batch["collector", "mask"] = torch.arange(12) < 8
    batch["loc"][8:], batch["observation"][8:] = torch.nan, torch.nan
    torch.testing.assert_close(loss(batch), expected)


def composite():
    params = [("params", "move", "logits"), ("params", "arm", "logits")]
    body = TensorDictModule(lambda x: (x[..., :2], x[..., 2:]), ["observation"], params)
    head = ProbabilisticTensorDictModule(
        ["params"],
        ["move", "arm"],
        distribution_class=CompositeDistribution,
        distribution_kwargs={"distribution_map": {"move": Categorical, "arm": Categorical}},
        return_log_prob=True,
    )
    return ProbabilisticTensorDictSequential(body, head), params


def test_the_divergence_of_several_actions_is_that_of_all():
    actor, params = composite()
    critic = TensorDictModule(nn.Linear(4, 1), ["observation"], ["state_value"])
    torch.manual_seed(0)
    batch = actor(TensorDict(observation=torch.randn(6, 4), batch_size=[6])).detach()
    batch["advantage"], batch["value_target"] = torch.randn(6, 1), torch.randn(6, 1)
    loss = KLPENPPOLoss(actor, critic, samples_mc_kl=20000)
    assert set(params) <= set(loss.in_keys)
    old = [Categorical(logits=batch[key]) for key in params]
    batch["observation"] = batch["observation"] + 0.3 * torch.randn(6, 4)
    new = [Categorical(logits=x) for x in (batch["observation"][:, :2], batch["observation"][:, 2:])]
    exact = sum(torch.distributions.kl_divergence(a, b) for a, b in zip(old, new, strict=True)).mean()
    torch.testing.assert_close(loss(batch)["kl"], exact, rtol=0.1, atol=1e-3)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"dtarg": 0}, "dtarg must be above 0, got 0"),
        ({"beta": -1}, "beta must be at least 0, got -1"),
        ({"increment": 0.5}, "increment must be at least 1, got 0.5"),
        ({"decrement": 2}, "decrement must be at most 1 and above 0, got 2"),
        ({"samples_mc_kl": 0}, "samples_mc_kl must be at least 1, got 0"),
    ],
)
def test_arguments_outside_their_range_are_refused(options, text):
    with pytest.raises(ArgumentError, match=text):
        make(**options)


def test_parameters_that_are_missing_or_fit_nothing_are_refused():
    loss, batch = make()
    with pytest.raises(ContractError, match=r"KLPENPPOLoss reads 'loc' and 'scale'.* The actor writes it: keep it"):
        loss(batch.exclude("loc", "scale"))
    with pytest.raises(ShapeError, match="they would broadcast"):
        penalized_surrogate(torch.zeros(2), torch.zeros(2), torch.zeros(2, 1), 1.0)
    with pytest.raises(ContractError, match="does not write the parameters of its distribution"):
        KLPENPPOLoss(loss.actor_network[0], loss.critic_network)
