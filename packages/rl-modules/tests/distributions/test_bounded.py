"""`TruncatedNormal` and `TanhDelta`."""

import math

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torch.testing import assert_close

from rl.core.errors import ArgumentError
from rl.core.specs import Bounded
from rl.modules import MLP, NormalParamExtractor, ProbabilisticActor, TanhDelta, TruncatedNormal

F64 = torch.float64
CASES = [
    pytest.param(0.0, 1.0, -1.0, 1.0, id="centred"),
    pytest.param(0.3, 0.5, -1.0, 2.0, id="off-centre"),
    pytest.param(5.0, 1.0, -1.0, 1.0, id="above"),
    pytest.param(-5.0, 0.1, -1.0, 1.0, id="40-sigma-below"),
    pytest.param(0.0, 100.0, -2.0, 1.0, id="nearly-uniform"),
    pytest.param(-1.0, 0.5, -1.0, 3.0, id="mean-on-a-bound"),
    pytest.param(0.2, 0.01, -1.0, 1.0, id="bounds-far-away"),
]
EVERY = pytest.mark.parametrize(("loc", "scale", "low", "high"), CASES)
DTYPES = pytest.mark.parametrize(("dtype", "tol"), [(F64, 1e-5), (torch.float32, 2e-4)], ids=["f64", "f32"])


def quadrature(loc, scale, low, high):
    """Nodes within the bounds, the log-density there, mean, variance and entropy; differentiable."""
    reach, centre = 15 * torch.as_tensor(scale).item(), min(max(torch.as_tensor(loc).item(), low), high)
    x = torch.linspace(max(low, centre - reach), min(high, centre + reach), 100_001, dtype=F64)
    score = -0.5 * ((x - loc) / scale) ** 2
    score = score - score.max().detach()
    log_p = score - torch.trapezoid(score.exp(), x).log()
    p = log_p.exp()
    mean = torch.trapezoid(p * x, x)
    variance = torch.trapezoid(p * (x - mean) ** 2, x)
    return x, log_p, mean, variance, -torch.trapezoid(p * log_p, x)


def make(loc, scale, low, high, dtype=F64, **kwargs):
    parameters = [torch.tensor([one], dtype=dtype, **kwargs) for one in (loc, scale)]
    return TruncatedNormal(*parameters, low=low, high=high), parameters


@EVERY
@DTYPES
def test_density_and_moments_agree_with_quadrature(loc, scale, low, high, dtype, tol):
    x, log_p, mean, variance, entropy = quadrature(loc, scale, low, high)
    dist, _ = make(loc, scale, low, high, dtype)
    index = torch.linspace(0, len(x) - 1, 21).long()
    assert_close(dist.log_prob(x[index].to(dtype).unsqueeze(-1)).double(), log_p[index], atol=tol, rtol=tol)
    assert_close(dist.mean[0].double(), mean, atol=tol, rtol=tol)
    assert_close(dist.entropy().double(), entropy, atol=tol, rtol=tol)
    assert_close(dist.variance[0].double(), variance, atol=1e-6, rtol=max(tol, 0.03 if dtype is not F64 else 0))


@EVERY
@pytest.mark.parametrize("dtype", [F64, torch.float32], ids=str)
def test_samples_follow_the_distribution_function(loc, scale, low, high, dtype):
    torch.manual_seed(0)
    x, log_p, *_ = quadrature(loc, scale, low, high)
    dist, _ = make(loc, scale, low, high, dtype)
    value = dist.sample((20_000,)).double().flatten().sort().values
    assert value[0] >= low
    assert value[-1] <= high
    cumulative = torch.cumulative_trapezoid(log_p.exp(), x)
    place = torch.searchsorted(x[1:], value.clamp(x[1], x[-1])).clamp(max=len(cumulative) - 1)
    found = torch.arange(1, 20_001) / 20_000
    assert (cumulative[place] - found).abs().max() < 1.63 / math.sqrt(20_000)  # Kolmogorov, 1 %


@EVERY
def test_gradients_of_samples_are_those_of_the_mean(loc, scale, low, high):
    torch.manual_seed(0)
    dist, parameters = make(loc, scale, low, high, requires_grad=True)
    found = torch.autograd.grad(dist.rsample((20_000,)).mean(), parameters)
    other = [torch.tensor(one, dtype=F64, requires_grad=True) for one in (loc, scale)]
    expected = torch.autograd.grad(quadrature(*other, low, high)[2], other)
    for a, b in zip(found, expected, strict=True):
        assert_close(a[0], b, atol=0.03, rtol=0.03)


@EVERY
def test_gradients_of_scores_and_entropies(loc, scale, low, high):
    dist, parameters = make(loc, scale, low, high, requires_grad=True)
    other = [torch.tensor(one, dtype=F64, requires_grad=True) for one in (loc, scale)]
    x, log_p, *_, entropy = quadrature(*other, low, high)
    for ours, theirs in ((dist.log_prob(x[-1:].unsqueeze(-1)).sum(), log_p[-1]), (dist.entropy().sum(), entropy)):
        found = torch.autograd.grad(ours, parameters, retain_graph=True)
        expected = torch.autograd.grad(theirs, other, retain_graph=True)
        for a, b in zip(found, expected, strict=True):
            assert_close(a[0], b, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("tensors", [False, True])
def test_truncated_normal_shapes_scores_and_modes(tensors):
    torch.manual_seed(0)
    low, high = (torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 3.0])) if tensors else (-2.0, 0.5)
    loc, scale = 3 * torch.randn(4, 2), torch.rand(4, 2) + 0.1
    dist = TruncatedNormal(loc, scale, low=low, high=high)
    action, log_prob = dist.sample_and_log_prob((5,))
    assert (action.shape, log_prob.shape) == ((5, 4, 2), (5, 4))
    assert_close(log_prob, dist.log_prob(action))
    assert_close(
        dist.deterministic_sample, torch.maximum(torch.minimum(loc, torch.as_tensor(high)), torch.as_tensor(low))
    )
    assert dist.expand((3, 4)).sample().shape == (3, 4, 2)
    outside = torch.full((4, 2), 10.0)
    assert (dist.log_prob(outside) == -torch.inf).all()
    squashed = TruncatedNormal(loc, scale, 2.0, low, high, tanh_loc=True)
    assert_close(squashed.loc, 2 * (loc / 2).tanh())


def test_extreme_parameters_stay_finite():
    loc = torch.tensor([-80.0, 80.0, 1.0, 0.0], requires_grad=True)
    dist = TruncatedNormal(loc, torch.tensor([1e-3, 0.1, 1e-4, 1e4]), low=-1.0, high=1.0)
    action, log_prob = dist.rsample_and_log_prob()
    assert_close(action[:2].detach(), torch.tensor([-1.0, 1.0]), atol=1e-2, rtol=0)
    (grad,) = torch.autograd.grad(log_prob.sum() + action.sum() + dist.entropy().sum(), loc)
    assert action.isfinite().all()
    assert log_prob.isfinite().all()
    assert grad.isfinite().all()


@pytest.mark.parametrize("make", [TruncatedNormal, TanhDelta])
def test_bounds_come_from_the_spec(make):
    spec = Bounded(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 3.0]))
    keys = ["loc", "scale"] if make is TruncatedNormal else ["param"]
    net = nn.Sequential(MLP(3, 4), NormalParamExtractor()) if make is TruncatedNormal else MLP(3, 2)
    actor = ProbabilisticActor(TensorDictModule(net, ["observation"], keys), keys, spec=spec, distribution_class=make)
    out = actor(TensorDict(observation=10 * torch.randn(50, 3), batch_size=[50]))
    assert spec.is_in(out["action"])
    assert actor.head.distribution_kwargs["high"].tolist() == [1.0, 3.0]


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (-2.0, 0.5), (torch.tensor([0.0, -1.0]), 3.0)], ids=str)
def test_tanh_delta_is_a_point_within_bounds(low, high):
    param = torch.randn(4, 2, requires_grad=True)
    dist = TanhDelta(param, low, high)
    expected = low + (high - low) * (param.tanh() + 1) / 2
    assert_close(dist.deterministic_sample, expected)
    assert_close(dist.rsample(), expected)
    assert_close(dist.mean, expected)
    assert dist.rsample().requires_grad
    assert not dist.sample().requires_grad
    assert (dist.log_prob(expected) == torch.inf).all()
    assert dist.expand((3, 4)).sample((2,)).shape == (2, 3, 4, 2)
    assert_close(dist.expand((3, 4)).mode[0], expected)


@pytest.mark.parametrize("make", [TruncatedNormal, TanhDelta])
@pytest.mark.parametrize("bounds", [{"low": 2.0}, {"high": torch.inf}])
def test_bounds_out_of_order_are_refused(make, bounds):
    with pytest.raises(ArgumentError, match="needs finite low <= high"):
        make(torch.zeros(1), **bounds, **({"scale": 1.0} if make is TruncatedNormal else {}))


@pytest.mark.parametrize("make", [TruncatedNormal, TanhDelta])
def test_one_bound_may_be_a_number_and_the_other_a_tensor(make):
    more = {"scale": torch.ones(4, 2)} if make is TruncatedNormal else {}
    ends = torch.tensor([1.0, 2.0])
    for low, high in ((-1.0, ends), (-ends, 1.0)):
        param = torch.randn(4, 2)
        dist = make(param, low=low, high=high, **more)
        both = make(param, low=low + 0 * ends, high=high + 0 * ends, **more)
        for name in ("mode", "mean", "deterministic_sample"):
            if hasattr(dist, name):
                assert_close(getattr(dist, name), getattr(both, name))
        sample = dist.sample((5,))
        assert ((sample >= low) & (sample <= high)).all()
        assert_close(dist.log_prob(sample), both.log_prob(sample))


def test_the_device_of_a_truncated_normal_is_that_of_its_parameters():
    parameters = [torch.ones(2, device=device) for device in ("cpu", "meta")]
    assert [TruncatedNormal(one, one).device for one in parameters] == [one.device for one in parameters]
