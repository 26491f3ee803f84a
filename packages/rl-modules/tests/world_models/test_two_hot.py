"""Two-hot categoricals and other heads against plain loops in float64."""

import math

import pytest
import torch
from torch.distributions import Categorical

from rl.core.errors import ArgumentError, ShapeError
from rl.modules import (
    SquaredError,
    SymExpTwoHot,
    SymLogTwoHotCategorical,
    TwoHotCategorical,
    straight_through,
    symexp,
    symexp_bins,
    symlog,
    two_hot_cross_entropy,
    two_hot_decode,
    two_hot_encode,
    unimix_logits,
)

DOUBLE = torch.float64


def encode_by_hand(x, bins):
    weights = [0.0] * len(bins)
    if x <= bins[0]:
        weights[0] = 1.0
    elif x >= bins[-1]:
        weights[-1] = 1.0
    else:
        k = next(i for i in range(1, len(bins)) if bins[i] > x)
        share = (x - bins[k - 1]) / (bins[k] - bins[k - 1])
        weights[k - 1], weights[k] = 1 - share, share
    return weights


@pytest.mark.parametrize("num_bins", [2, 5, 6, 255])
def test_encoding_is_that_of_a_loop(num_bins):
    torch.manual_seed(0)
    bins = symexp_bins(num_bins, dtype=DOUBLE)
    x = torch.cat((symexp(6 * torch.randn(50, dtype=DOUBLE)), bins, torch.tensor([-1e12, 1e12, 0.0], dtype=DOUBLE)))
    expected = torch.tensor([encode_by_hand(one, bins.tolist()) for one in x.tolist()], dtype=DOUBLE)
    found = two_hot_encode(x, bins)
    torch.testing.assert_close(found, expected)
    inside = x.clamp(bins[0], bins[-1])
    torch.testing.assert_close((found * bins).sum(-1), inside, rtol=1e-9, atol=1e-6)


def test_pitfall_3_numbers_are_interpolated_in_their_own_space_and_not_in_symlog_space():
    bins = symexp_bins(255, dtype=DOUBLE)
    k = 200
    middle = 0.5 * (bins[k] + bins[k + 1])
    weights = two_hot_encode(middle.unsqueeze(0), bins)[0]
    torch.testing.assert_close(weights[k : k + 2], torch.tensor([0.5, 0.5], dtype=DOUBLE))
    between = symlog(torch.stack((bins[k], middle, bins[k + 1])))
    assert not math.isclose((between[1] - between[0]) / (between[2] - between[0]), 0.5, rel_tol=1e-3)


def test_bins_are_those_of_the_paper():
    torch.testing.assert_close(symexp_bins(255, dtype=DOUBLE), symexp(torch.linspace(-20, 20, 255, dtype=DOUBLE)))
    for number in (254, 255):
        assert torch.equal(symexp_bins(number), -symexp_bins(number).flip(0))


@pytest.mark.parametrize("number", [254, 255, 41])
def test_pitfall_3_the_prediction_is_exactly_zero_at_first(number):
    for dtype in (torch.float32, torch.bfloat16, DOUBLE):
        assert not two_hot_decode(torch.zeros(3, number, dtype=dtype), symexp_bins(number)).any()
    assert not TwoHotCategorical(torch.full((3, number), 0.7)).mean.any()
    naive = (torch.zeros(3, 255).softmax(-1) * symexp_bins(255)).cumsum(-1)[:, -1]
    assert naive.any()  # a plain sum is not 0


def test_the_loss_is_the_cross_entropy_and_has_the_gradient_of_a_softmax():
    torch.manual_seed(0)
    bins = symexp_bins(21, dtype=DOUBLE)
    logits = torch.randn(7, 21, dtype=DOUBLE, requires_grad=True)
    target = symexp(3 * torch.randn(7, dtype=DOUBLE))
    hot = two_hot_encode(target, bins)
    found = two_hot_cross_entropy(logits, target, bins)
    torch.testing.assert_close(found, -(hot * (logits - logits.logsumexp(-1, keepdim=True))).sum(-1))
    torch.testing.assert_close(torch.autograd.grad(found.sum(), logits)[0], logits.softmax(-1) - hot)
    torch.testing.assert_close(two_hot_cross_entropy(logits, target.unsqueeze(-1), bins), found)
    torch.testing.assert_close(-TwoHotCategorical(logits, bins).log_prob(target.unsqueeze(-1)), found)


def test_shapes_that_do_not_fit_are_refused():
    bins = symexp_bins(5)
    for call in (
        lambda: two_hot_cross_entropy(torch.zeros(2, 5), torch.zeros(3), bins),
        lambda: two_hot_decode(torch.zeros(2, 4), bins),
        lambda: two_hot_encode(torch.zeros(2), bins[:1]),
    ):
        with pytest.raises(ShapeError, match="two_hot"):
            call()
    with pytest.raises(ArgumentError, match="num_bins"):
        SymExpTwoHot(1)


def test_a_head_learns_numbers_over_nine_orders_of_magnitude():
    target = torch.tensor([[-1e5], [-0.01], [0.0], [3.0], [1e4]], dtype=DOUBLE)
    logits = torch.zeros(5, 255, dtype=DOUBLE, requires_grad=True)
    optimizer = torch.optim.Adam([logits], 0.3)
    for _ in range(1500):
        optimizer.zero_grad()
        (-TwoHotCategorical(logits).log_prob(target)).sum().backward()
        optimizer.step()
    found = symlog(TwoHotCategorical(logits).mean)
    torch.testing.assert_close(found, symlog(target), atol=0.05, rtol=0.02)


def test_the_module_is_the_functions():
    two_hot = SymExpTwoHot(41)
    target, logits = torch.tensor([-3.0, 0.5]), torch.randn(2, 41)
    torch.testing.assert_close(two_hot.encode(target), two_hot_encode(target, two_hot.bins))
    torch.testing.assert_close(two_hot(logits)[:, 0], two_hot.decode(logits))
    torch.testing.assert_close(two_hot.loss(logits, target), two_hot_cross_entropy(logits, target, two_hot.bins))


def test_td_mpc2_interpolates_in_symlog_space():
    logits, value = torch.randn(4, 101, dtype=DOUBLE), torch.tensor([[-500.0], [0.0], [2.0], [1e9]], dtype=DOUBLE)
    bins = torch.linspace(-10, 10, 101, dtype=DOUBLE)
    dist = SymLogTwoHotCategorical(logits)
    torch.testing.assert_close(dist.mean[:, 0], symexp((logits.softmax(-1) * bins).sum(-1)))
    hot = two_hot_encode(symlog(value[:, 0]), bins)
    torch.testing.assert_close(dist.log_prob(value), (hot * logits.log_softmax(-1)).sum(-1))


def test_squared_errors_sum_over_the_event():
    loc = torch.rand(2, 3, 4, 4)
    pixels = torch.randint(256, loc.shape, dtype=torch.uint8)
    expected = -(loc - pixels / 255).square().sum((-3, -2, -1))
    torch.testing.assert_close(SquaredError(loc, 3).log_prob(pixels), expected)
    x = 10 * torch.randn(5, 3)
    dist = SquaredError(torch.zeros(5, 3), symlog=True)
    torch.testing.assert_close(dist.log_prob(x), -symlog(x).square().sum(-1))
    torch.testing.assert_close(SquaredError(symlog(x), symlog=True).mean, x)
    with pytest.raises(ShapeError, match="SquaredError"):
        dist.log_prob(x[:, :1])


def test_mixing_bounds_the_probabilities():
    logits = 100 * torch.randn(5, 4, dtype=DOUBLE)
    found = unimix_logits(logits, 0.2).exp()
    torch.testing.assert_close(found, 0.8 * logits.softmax(-1) + 0.05)
    torch.testing.assert_close(unimix_logits(logits, 0.0), logits.log_softmax(-1))
    with pytest.raises(ArgumentError):
        unimix_logits(logits, 1.0)


def test_samples_are_one_hot_with_the_right_frequencies_and_the_gradient_of_the_probabilities():
    torch.manual_seed(0)
    logits = torch.tensor([0.3, -1.0, 1.2], dtype=DOUBLE, requires_grad=True)
    many = logits.expand(20_000, 3)
    sample = straight_through(many.log_softmax(-1), torch.empty_like(many).exponential_())
    assert ((sample == 0) | (sample == 1)).all()
    assert (sample.sum(-1) == 1).all()
    expected = logits.softmax(-1).detach()
    error = (expected * (1 - expected) / 20_000).sqrt()
    assert ((sample.mean(0) - expected).abs() < 5 * error).all()
    weight = torch.tensor([1.0, 5.0, -2.0], dtype=DOUBLE)
    found = torch.autograd.grad((sample * weight).sum() / 20_000, logits)[0]
    torch.testing.assert_close(found, torch.autograd.grad((logits.softmax(-1) * weight).sum(), logits)[0])
    assert Categorical(logits=logits).entropy() > 0
