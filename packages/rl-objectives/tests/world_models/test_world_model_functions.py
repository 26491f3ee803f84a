"""Functions of world-model losses against plain loops in float64."""

import math

import pytest
import torch
from torch.distributions import Categorical, Independent, Normal, kl_divergence

from rl.core.errors import ArgumentError, ShapeError
from rl.objectives.functional import (
    PercentileScale,
    categorical_kl_balanced,
    categorical_kl_terms,
    critic_regression,
    decayed_mean,
    episode_discount,
    imagination_weight,
    lambda_return,
    normal_kl,
    reinforce_objective,
)

DOUBLE = torch.float64


def rand(*size):
    return torch.randn(*size, dtype=DOUBLE)


def mixed(logits, unimix):
    return Categorical(probs=(1 - unimix) * logits.softmax(-1) + unimix / logits.shape[-1])


@pytest.mark.parametrize("unimix", [0.0, 0.01, 0.3])
def test_pitfall_3_free_nats_bound_the_sum_over_categoricals(unimix):
    torch.manual_seed(0)
    post, prior = rand(50, 4, 6), rand(50, 4, 6)
    each = kl_divergence(mixed(post, unimix), mixed(prior, unimix))
    free = each.sum(-1).median().item()
    expected = each.sum(-1).clamp_min(free)
    assert not torch.allclose(expected, each.clamp_min(free).sum(-1))  # a bound of each would be another number
    for found in categorical_kl_terms(post, prior, free, unimix):
        torch.testing.assert_close(found, expected)


def test_each_divergence_trains_one_of_both_networks():
    torch.manual_seed(0)
    post, prior = rand(5, 4, 6).requires_grad_(), rand(5, 4, 6).requires_grad_()
    dynamics, representation = categorical_kl_terms(post, prior, free_nats=0.0)
    assert torch.autograd.grad(dynamics.sum(), post, allow_unused=True, retain_graph=True)[0] is None
    assert torch.autograd.grad(representation.sum(), prior, allow_unused=True, retain_graph=True)[0] is None
    for free, total in ((0.0, dynamics + representation), (1e3, sum(categorical_kl_terms(post, prior, 1e3)))):
        grads = torch.autograd.grad(total.sum(), [post, prior])
        assert all((grad.abs().sum() > 0) == (free == 0) for grad in grads)


def test_balanced_divergence_is_the_weighted_sum():
    post, prior = rand(5, 4, 6), rand(5, 4, 6)
    dynamics, representation = categorical_kl_terms(post, prior, 0.5, 0.0)
    torch.testing.assert_close(categorical_kl_balanced(post, prior, 0.8, 0.5), 0.8 * dynamics + 0.2 * representation)
    with pytest.raises(ShapeError):
        categorical_kl_terms(post, prior[:, :1])


def test_normal_divergence_is_that_of_torch():
    mean, other = rand(7, 3), rand(7, 3)
    std, wide = rand(7, 3).exp(), rand(7, 3).exp()
    expected = kl_divergence(Independent(Normal(mean, std), 1), Independent(Normal(other, wide), 1))
    torch.testing.assert_close(normal_kl(mean, std, other, wide, free_nats=0.0), expected)
    torch.testing.assert_close(normal_kl(mean, std, other, wide, free_nats=3.0), expected.clamp_min(3))


def returns_by_hand(reward, bootstrap, last, terminal, gamma, lmbda):
    """Equation 6, with numbers."""
    steps = len(reward)
    out, following = [0.0] * steps, bootstrap[-1]
    for t in reversed(range(steps)):
        live, cont = gamma * (1 - terminal[t]), lmbda * (1 - last[t])
        out[t] = following = reward[t] + live * ((1 - cont) * bootstrap[t] + cont * following)
    return out


@pytest.mark.parametrize("seed", range(5))
def test_pitfall_2_returns_are_those_of_a_loop(seed):
    torch.manual_seed(seed)
    reward, bootstrap = rand(3, 7, 1), rand(3, 7, 1)
    last = torch.rand(3, 7, 1) < 0.3
    terminal = last & (torch.rand(3, 7, 1) < 0.5)
    found = lambda_return(reward, bootstrap, last, terminal, 0.9, 0.8)
    for row in range(3):
        parts = [leaf[row, :, 0].double().tolist() for leaf in (reward, bootstrap, last, terminal)]
        torch.testing.assert_close(found[row, :, 0], torch.tensor(returns_by_hand(*parts, 0.9, 0.8), dtype=DOUBLE))


@pytest.mark.parametrize("lmbda", [0.0, 0.7, 1.0])
def test_pitfall_4_a_truncated_step_bootstraps_and_a_terminal_one_does_not(lmbda):
    reward, value = torch.ones(1, 3, 1, dtype=DOUBLE), torch.full((1, 3, 1), 100.0, dtype=DOUBLE)
    last = torch.tensor([[[False], [True], [False]]])
    truncated = lambda_return(reward, value, last, torch.zeros_like(last), 0.5, lmbda)
    terminal = lambda_return(reward, value, last, last, 0.5, lmbda)
    assert truncated[0, 1].item() == 1 + 0.5 * 100
    assert terminal[0, 1].item() == 1
    # What follows the end belongs to another episode, whose values reach no step before it.
    value[:, 2], reward[:, 2] = 1e6, 1e6
    torch.testing.assert_close(lambda_return(reward, value, last, last, 0.5, lmbda)[:, :2], terminal[:, :2])


def test_returns_are_differentiable_in_rewards_values_and_terminal_probabilities():
    torch.manual_seed(0)
    reward, value = rand(2, 4, 1).requires_grad_(), rand(2, 4, 1).requires_grad_()
    terminal = torch.rand(2, 4, 1, dtype=DOUBLE).requires_grad_()
    zero = torch.zeros(2, 4, 1)

    def function(reward, value, terminal):
        return lambda_return(reward, value, zero, terminal, 0.9, 0.8)

    assert torch.autograd.gradcheck(function, (reward, value, terminal))
    with pytest.raises(ShapeError):
        lambda_return(reward, value[:, 1:], zero, zero)


def test_time_may_be_another_dimension():
    reward, value, zero = rand(4, 2), rand(4, 2), torch.zeros(4, 2)
    found = lambda_return(reward, value, zero, zero, 0.9, 0.8, time_dim=0)
    expected = lambda_return(*(x.T.unsqueeze(-1) for x in (reward, value, zero, zero)), 0.9, 0.8)
    torch.testing.assert_close(found, expected[..., 0].T)


def test_pitfall_3_the_root_continuation_is_part_of_the_weights():
    continuation = torch.tensor([[[0.0], [1.0]], [[0.5], [0.5]]], requires_grad=True)
    found = imagination_weight(continuation)
    assert found.flatten().tolist() == [0.0, 0.0, 0.5, 0.25]
    assert not found.requires_grad


def test_policy_gradient_has_no_gradient_through_advantages_and_weights():
    log_prob, advantage, entropy, weight = (rand(5).requires_grad_() for _ in range(4))
    loss = reinforce_objective(log_prob, advantage, entropy, weight, 0.1)
    torch.testing.assert_close(loss, -(weight * (log_prob * advantage + 0.1 * entropy)).detach())
    grads = torch.autograd.grad(loss.sum(), [log_prob, entropy, advantage, weight], allow_unused=True)
    torch.testing.assert_close(grads[0], -(weight * advantage).detach())
    torch.testing.assert_close(grads[1], -0.1 * weight.detach())
    assert grads[2] is grads[3] is None


def test_the_critic_learns_returns_and_slow_values():
    loc, target, slow = rand(5, 1).requires_grad_(), rand(5, 1).requires_grad_(), rand(5, 1)
    dist = Independent(Normal(loc, 1.0), 1)
    found = critic_regression(dist, target, slow, 2.0)
    constant = 0.5 * math.log(2 * math.pi)
    expected = 0.5 * (loc - target).square() + constant + 2 * (0.5 * (loc - slow).square() + constant)
    torch.testing.assert_close(found, expected.squeeze(-1))
    torch.testing.assert_close(critic_regression(dist, target), (0.5 * (loc - target).square() + constant).squeeze(-1))
    assert torch.autograd.grad(found.sum(), target, allow_unused=True)[0] is None


def test_decayed_mean_is_that_of_a_loop():
    elements = rand(4, 3)
    expected = sum(0.5**t * elements[:, t] for t in range(3)) / 3
    torch.testing.assert_close(decayed_mean(elements, 0.5), expected)
    torch.testing.assert_close(decayed_mean(elements.T, 0.5, 0), expected)


def test_the_discount_of_td_mpc2_follows_the_length_of_episodes():
    assert episode_discount(500) == 0.99
    assert episode_discount(25) == 0.95
    assert episode_discount(100_000) == 0.995
    with pytest.raises(ArgumentError):
        episode_discount(0)


def test_pitfall_8_the_scale_of_returns_starts_at_zero_without_debiasing():
    scale, low, high = PercentileScale(), 0.0, 0.0
    assert scale() == 1
    for _ in range(3):
        returns = 1000 * torch.randn(31, 7)
        ordered = returns.flatten().sort().values.double()
        found = []
        for quantile in (0.05, 0.95):
            place = quantile * (len(ordered) - 1)
            below = int(place)
            found.append(torch.lerp(ordered[below], ordered[below + 1], place - below).item())
        low, high = 0.99 * low + 0.01 * found[0], 0.99 * high + 0.01 * found[1]
        scale.update(returns)
        assert math.isclose(scale().item(), max(1, high - low), rel_tol=1e-4)
    assert scale.state_dict()["percentiles"].tolist() == pytest.approx([low, high], rel=1e-4)


@pytest.mark.parametrize("options", [{"rate": 2}, {"low": 0.9, "high": 0.1}, {"least": 0.0}])
def test_a_scale_refuses_ranges(options):
    with pytest.raises(ArgumentError, match="PercentileScale"):
        PercentileScale(**options)
