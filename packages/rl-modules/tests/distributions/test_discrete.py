import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import distributions as D
from torch.distributions import kl_divergence
from torch.testing import assert_close

from rl.core.errors import ArgumentError, ShapeError
from rl.modules import (
    Categorical,
    IndependentBernoulli,
    IndependentCategorical,
    MaskedCategorical,
    MaskedOneHotCategorical,
    OneHotCategorical,
)

F64 = torch.float64
BOTH = pytest.mark.parametrize("make", [Categorical, OneHotCategorical], ids=["integers", "one-hot"])
MASKED = pytest.mark.parametrize("make", [MaskedCategorical, MaskedOneHotCategorical], ids=["integers", "one-hot"])


def one_hot(index, n):
    return torch.nn.functional.one_hot(index, n)


@pytest.mark.parametrize("source", ["logits", "probs"])
def test_log_prob_and_entropy_agree_with_torch(source):
    torch.manual_seed(0)
    given_ = torch.randn(5, 4, dtype=F64) if source == "logits" else torch.rand(5, 4, dtype=F64)
    other = D.Categorical(**{source: given_})
    index = other.sample((6,))
    integers, vectors = Categorical(**{source: given_}), OneHotCategorical(**{source: given_})
    assert_close(integers.log_prob(index), other.log_prob(index))
    assert_close(vectors.log_prob(one_hot(index, 4)), other.log_prob(index))
    assert_close(vectors.log_prob(one_hot(index, 4).bool()), other.log_prob(index))
    for dist in (integers, vectors):
        assert_close(dist.entropy(), other.entropy())
        assert_close(dist.logits, other.logits)
        assert_close(dist.probs, other.probs)


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=6), st.integers(0, 2**31))
@settings(max_examples=25, deadline=None)
def test_draws_follow_the_probabilities(logits, seed):
    torch.manual_seed(seed)
    dist, count = Categorical(logits=torch.tensor(logits)), 20_000
    observed = dist.sample((count,)).bincount(minlength=len(logits)).double()
    expected = dist.probs.double() * count
    chi2 = ((observed - expected).square() / expected).sum()
    assert chi2 < 40  # at most 5 degrees of freedom: 1e-7 of all runs


@BOTH
def test_shapes_and_dtypes(make):
    dist = make(logits=torch.zeros(2, 3, 5))
    event = () if make is Categorical else (5,)
    assert (dist.batch_shape, dist.event_shape) == ((2, 3), event)
    for value in (dist.sample(), dist.mode, dist.deterministic_sample):
        assert value.shape == (2, 3, *event)
        assert value.dtype is torch.int64
    value, log_prob = dist.sample_and_log_prob((4,))
    assert value.shape == (4, 2, 3, *event)
    assert_close(log_prob, torch.full((4, 2, 3), -math.log(5)))
    assert dist.enumerate_support().shape == (5, 2, 3, *event)
    assert_close(dist.log_prob(dist.enumerate_support()).exp().sum(0), torch.ones(2, 3))


@BOTH
def test_fused_draw_scores_as_log_prob_with_the_same_gradient(make):
    logits = torch.randn(50, 3, dtype=F64, requires_grad=True)
    value, log_prob = make(logits=logits).sample_and_log_prob()
    again = make(logits=logits).log_prob(value)
    assert_close(log_prob, again)
    fused, plain = (torch.autograd.grad(x.sum(), logits)[0] for x in (log_prob, again))
    assert_close(fused, plain)


@BOTH
def test_the_same_seed_draws_the_same_in_every_way(make):
    dist = make(logits=torch.randn(20, 4))
    torch.manual_seed(3)
    plain = dist.sample()
    torch.manual_seed(3)
    assert_close(dist.sample_and_log_prob()[0], plain)


def test_one_hot_dtype_and_mode():
    dist = OneHotCategorical(logits=torch.tensor([[0.0, 2.0, 1.0]]), dtype=torch.bool)
    assert_close(dist.mode, torch.tensor([[False, True, False]]))
    assert_close(dist.mean, dist.probs)
    assert_close(dist.variance, D.OneHotCategorical(dist.probs).variance)


def test_straight_through_gradient_is_that_of_the_probabilities():
    logits = torch.randn(6, 4, dtype=F64, requires_grad=True)
    weight = torch.randn(6, 4, dtype=F64)
    dist = OneHotCategorical(logits=logits)
    value = dist.rsample()
    assert_close(value, value.round())
    assert_close(value.sum(-1), torch.ones(6, dtype=F64))
    straight, soft = (torch.autograd.grad((x * weight).sum(), logits)[0] for x in (value, logits.softmax(-1)))
    assert_close(straight, soft)


def test_gradients_of_score_and_entropy():
    index = torch.tensor([0, 2])

    def scored(logits):
        dist = Categorical(logits=logits)
        return dist.log_prob(index), dist.entropy(), Categorical(probs=logits.softmax(-1)).log_prob(index)

    assert torch.autograd.gradcheck(scored, torch.randn(2, 3, dtype=F64, requires_grad=True))


@MASKED
@given(mask=st.lists(st.booleans(), min_size=2, max_size=6).filter(any), seed=st.integers(0, 2**31))
@settings(max_examples=25, deadline=None)
def test_a_forbidden_action_is_never_drawn(make, mask, seed):
    torch.manual_seed(seed)
    allowed = torch.tensor(mask)
    logits = torch.where(allowed, torch.randn(len(mask)), 50.0)  # temptation
    dist = make(logits=logits, mask=allowed)
    value = dist.sample((2000,))
    index = value if make is MaskedCategorical else value.argmax(-1)
    assert allowed[index].all()
    assert allowed[dist.mode if make is MaskedCategorical else dist.mode.argmax(-1)]


@MASKED
def test_masked_agrees_with_the_distribution_on_what_is_left(make):
    logits = torch.randn(7, 4, dtype=F64, requires_grad=True)
    mask = torch.tensor([True, False, True, True])
    dist, other = make(logits=logits, mask=mask), D.Categorical(logits=logits[:, mask])
    index = torch.randint(3, (7,))
    value = torch.tensor([0, 2, 3])[index]
    value = value if make is MaskedCategorical else one_hot(value, 4)
    assert_close(dist.log_prob(value), other.log_prob(index))
    assert_close(dist.entropy(), other.entropy())
    (grad,) = torch.autograd.grad((dist.entropy() + dist.log_prob(value)).sum(), logits)
    assert grad.isfinite().all()
    assert (grad[:, 1] == 0).all()


@MASKED
def test_a_forbidden_action_scores_minus_infinity(make):
    dist = make(probs=torch.ones(3), mask=torch.tensor([True, False, True]))
    value = torch.tensor(1) if make is MaskedCategorical else torch.tensor([0, 1, 0])
    assert dist.log_prob(value) == -torch.inf


@MASKED
def test_a_mask_that_allows_nothing_or_does_not_fit_is_refused(make):
    with pytest.raises(ArgumentError, match="allows no action"):
        make(logits=torch.zeros(2, 3), mask=torch.tensor([[True, True, True], [False, False, False]]))
    with pytest.raises(ArgumentError, match="bool"):
        make(logits=torch.zeros(3), mask=torch.ones(3))
    with pytest.raises(ShapeError, match=r"\(2, 3\) and a mask \(4,\)"):
        make(logits=torch.zeros(2, 3), mask=torch.ones(4, dtype=torch.bool))


def test_probability_zero_has_no_wild_gradient():
    probs = torch.tensor([0.0, 0.5, 0.5], requires_grad=True)
    dist = Categorical(probs=probs)
    dist.log_prob(torch.tensor(1)).backward()
    assert probs.grad.isfinite().all()
    assert dist.sample((1000,)).min() == 1


def test_divergence_agrees_with_torch_and_minds_masks():
    logits = torch.randn(2, 5, 3, dtype=F64)
    p, q = (Categorical(logits=x) for x in logits)
    a, b = (D.Categorical(logits=x) for x in logits)
    assert_close(kl_divergence(p, q), kl_divergence(a, b))
    mask = torch.tensor([True, True, False])
    p, q = (MaskedOneHotCategorical(logits=x, mask=mask) for x in logits)
    a, b = (D.Categorical(logits=x[:, :2]) for x in logits)
    assert_close(kl_divergence(p, q), kl_divergence(a, b))


@BOTH
def test_expand(make):
    dist = make(logits=torch.zeros(3)).expand((4, 2))
    assert dist.batch_shape == (4, 2)
    assert dist.sample().shape[:2] == (4, 2)


@BOTH
def test_misuse_is_named(make):
    with pytest.raises(ArgumentError, match="got neither"):
        make()
    with pytest.raises(ArgumentError, match="got both"):
        make(torch.zeros(2), torch.ones(2))
    with pytest.raises(ArgumentError, match="not a number"):
        make(torch.tensor([0.0, torch.nan]), validate_args=True)
    with pytest.raises(ArgumentError, match="probability zero"):
        make(probs=torch.zeros(2), validate_args=True)
    with pytest.raises(ArgumentError, match="values"):
        make(torch.zeros(2), validate_args=True).log_prob(torch.tensor([2, 2]))


def test_integers_given_to_one_hot_are_refused():
    with pytest.raises(ShapeError, match="for integers use Categorical"):
        OneHotCategorical(logits=torch.zeros(6, 3)).log_prob(torch.zeros(6, dtype=torch.int64))


def test_independent_choices_agree_with_a_categorical_distribution_each():
    torch.manual_seed(0)
    logits, mask = torch.randn(5, 8), torch.tensor([[True, True, False, False], [True] * 4])
    dist = IndependentCategorical(logits, mask)
    parts = [D.Categorical(logits=part) for part in (logits[:, :2], logits[:, 4:])]
    value = torch.stack([part.sample() for part in parts], -1)
    assert_close(dist.log_prob(value), parts[0].log_prob(value[:, 0]) + parts[1].log_prob(value[:, 1]))
    assert_close(dist.entropy(), parts[0].entropy() + parts[1].entropy())
    assert (dist.sample((200,))[..., 0] < 2).all()
    mode = torch.stack([part.mode for part in parts], -1)
    assert torch.equal(dist.deterministic_sample, mode)


def test_independent_bits_agree_with_a_bernoulli_distribution_each():
    torch.manual_seed(0)
    logits = torch.randn(5, 8)
    dist, other = IndependentBernoulli(logits), D.Bernoulli(logits=logits)
    value = dist.sample()
    assert value.dtype is torch.int8
    assert_close(dist.log_prob(value), other.log_prob(value.float()).sum(-1))
    assert_close(dist.entropy(), other.entropy().sum(-1))
    assert torch.equal(dist.deterministic_sample, (logits > 0).to(torch.int8))
    assert IndependentBernoulli(logits, torch.bool).deterministic_sample.dtype is torch.bool


CLASSES = torch.tensor([[True, True, False], [True, True, True]])  # choices of 2 and of 3 classes


def test_choices_are_those_that_the_action_mask_allows():
    torch.manual_seed(0)
    logits = torch.randn(64, 6, requires_grad=True)
    allowed = torch.rand(64, 5) < 0.5
    allowed[:, 0], allowed[:, 4] = ~allowed[:, 1], ~allowed[:, 2:4].any(-1)
    dist = IndependentCategorical(logits, CLASSES, allowed)
    one = MaskedCategorical(logits=logits[:, :2], mask=allowed[:, :2])
    two = MaskedCategorical(logits=logits[:, 3:], mask=allowed[:, 2:])
    action = dist.sample()
    assert allowed.gather(-1, action + torch.tensor([0, 2])).all()
    torch.testing.assert_close(dist.log_prob(action), one.log_prob(action[:, 0]) + two.log_prob(action[:, 1]))
    torch.testing.assert_close(dist.entropy(), one.entropy() + two.entropy())
    assert torch.equal(dist.deterministic_sample, torch.stack([one.mode, two.mode], -1))
    dist.log_prob(action).sum().backward()
    assert logits.grad.isfinite().all()
    assert not logits.grad[:, 2].any()


def test_an_action_mask_that_allows_all_changes_nothing():
    logits = torch.randn(4, 6)
    action = torch.tensor([[0, 2], [1, 0], [1, 1], [0, 0]])
    free = IndependentCategorical(logits, CLASSES)
    masked = IndependentCategorical(logits, CLASSES, torch.ones(4, 5, dtype=torch.bool))
    assert torch.equal(free.log_prob(action), masked.log_prob(action))


@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        (torch.ones(4, 6, dtype=torch.bool), ShapeError, r"has 5 classes in all, and got a mask of shape \(4, 6\)"),
        (torch.tensor([[True, False, False, False, False]]), ArgumentError, "a row that allows no action"),
        (torch.ones(4, 5), ArgumentError, "must be bool"),
    ],
)
def test_an_action_mask_of_choices_that_does_not_fit_is_refused(mask, error, message):
    with pytest.raises(error, match=message):
        IndependentCategorical(torch.zeros(4, 6), CLASSES, mask)
