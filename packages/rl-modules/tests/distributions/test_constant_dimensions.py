"""Bounds that are equal in a dimension: that dimension of the action is constant, and has no part in any score."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import kl_divergence
from torch.testing import assert_close

from rl.core.specs import Bounded
from rl.modules import (
    MLP,
    DiffusionActor,
    NormalParamExtractor,
    ProbabilisticActor,
    TanhDelta,
    TanhModule,
    TanhNormal,
    TruncatedNormal,
)

LOW, HIGH = torch.tensor([-1.0, 0.5, -2.0]), torch.tensor([2.0, 0.5, -2.0])  # of three dimensions one can move
NORMALS = pytest.mark.parametrize("make", [TanhNormal, TruncatedNormal])


def parameters():
    torch.manual_seed(0)
    loc, scale = torch.randn(4, 3), torch.rand(4, 3) + 0.1
    return loc.requires_grad_(), scale.requires_grad_()


@NORMALS
@pytest.mark.parametrize("validate", [False, True])
def test_a_normal_within_bounds_scores_the_dimensions_that_move(make, validate):
    loc, scale = parameters()
    dist = make(loc, scale, low=LOW, high=HIGH, validate_args=validate)
    moving = make(loc[:, :1], scale[:, :1], low=-1.0, high=2.0)
    action, score = dist.rsample_and_log_prob()
    assert_close(action[:, 1:], HIGH[1:].expand(4, 2))
    assert (action[:, :1] != action[0, 0]).any()
    assert_close(dist.log_prob(action.detach()), moving.log_prob(action[:, :1].detach()))
    assert_close(dist.sample_and_log_prob()[0][:, 1:], HIGH[1:].expand(4, 2))
    for name in ("mode", "mean", "deterministic_sample", "variance"):
        fixed = torch.zeros(2) if name == "variance" else HIGH[1:]
        assert_close(getattr(dist, name), torch.cat([getattr(moving, name), fixed.expand(4, 2)], -1))
    parts = [action.sum(), score.sum(), dist.log_prob(action.detach()).sum(), dist.mean.sum()]
    if make.has_entropy:
        assert_close(dist.entropy(), moving.entropy())
        parts.append(dist.entropy().sum())
    for part in parts:
        of_loc, of_scale = torch.autograd.grad(part, (loc, scale), retain_graph=True)
        for grad in (of_loc, of_scale):
            assert grad.isfinite().all()
            assert (grad[:, 1:] == 0).all()


@NORMALS
@pytest.mark.parametrize("width", [0.0, 0.2], ids=["constant", "wide"])
def test_what_stands_for_a_saturated_distribution_is_within_its_bounds(make, width):
    low, high = torch.full((3,), 0.1), torch.full((3,), 0.1) + width
    for loc in (-50.0, 50.0):
        dist = make(torch.full((3,), loc), torch.ones(3), low=low, high=high)
        for value in (dist.mean, dist.mode, dist.deterministic_sample):
            assert ((value >= low) & (value <= high)).all()


@NORMALS
def test_numbers_as_bounds_may_be_equal(make):
    loc, scale = parameters()
    action, score = make(loc, scale, low=0.5, high=0.5).rsample_and_log_prob()
    assert (action == 0.5).all()
    assert_close(score, torch.zeros(4))


def test_the_divergence_is_that_of_the_dimensions_that_move():
    loc, scale = parameters()
    one, other = (TanhNormal(loc + i, scale, low=LOW, high=HIGH) for i in range(2))
    moving = [TanhNormal(loc[:, :1] + i, scale[:, :1], low=-1.0, high=2.0) for i in range(2)]
    assert_close(kl_divergence(one, other), kl_divergence(*moving))


def test_points_within_bounds_are_constant_there():
    param = torch.randn(4, 3, requires_grad=True)
    dist = TanhDelta(param, LOW, HIGH, validate_args=True)
    squash = TanhModule(["a"], spec=Bounded(LOW, HIGH))
    for action in (dist.rsample(), squash(TensorDict(a=param, batch_size=[4]))["a"]):
        assert_close(action[:, 1:], HIGH[1:].expand(4, 2))
        (grad,) = torch.autograd.grad(action.sum(), param)
        assert (grad[:, 1:] == 0).all()
        assert (grad[:, 0] > 0).all()
    assert (dist.log_prob(dist.sample()) == torch.inf).all()


@pytest.mark.parametrize("spec", [Bounded(LOW, HIGH), Bounded(0.5, 0.5, (3,))], ids=["some", "all"])
@pytest.mark.parametrize("make", [TanhNormal, TruncatedNormal, TanhDelta, DiffusionActor])
def test_policies_of_a_spec_with_a_constant_dimension_act_within_it(make, spec):
    keys = ["param"] if make is TanhDelta else ["loc", "scale"]
    net = MLP(5, 3) if make is TanhDelta else nn.Sequential(MLP(5, 6), NormalParamExtractor())
    if make is DiffusionActor:
        actor = DiffusionActor(3, 5, num_steps=4, spec=spec)
        scaled, noise = actor.module.add_noise(spec.rand((8,)), torch.zeros(8, dtype=torch.int64))
        assert (scaled + noise).isfinite().all()
    else:
        module = TensorDictModule(net, ["observation"], keys)
        actor = ProbabilisticActor(module, keys, spec=spec, distribution_class=make, return_log_prob=True)
    out = actor(TensorDict(observation=torch.randn(8, 5), batch_size=[8]))
    assert spec.is_in(out["action"])
    assert not out.get("action_log_prob", torch.zeros(8)).isnan().any()
