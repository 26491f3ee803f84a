"""World models as functions of tensors: divergences, imagined returns, and the losses of actors and critics."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rl.core.arguments import as_number, same_shape
from rl.objectives.functional._recurrence import linear_recurrence


def _log_probs(logits: Tensor, unimix: float) -> Tensor:
    """Return normalized log-probabilities of logits, mixed with the uniform distribution."""
    log_probs = logits.log_softmax(-1)
    return ((1 - unimix) * log_probs.exp() + unimix / logits.shape[-1]).log() if unimix else log_probs


def categorical_kl_terms(
    posterior_logits: Tensor, prior_logits: Tensor, free_nats: float = 1.0, unimix: float = 0.01
) -> tuple[Tensor, Tensor]:
    """Divergence of posterior and prior with categorical states, for the prior and for the posterior.

    Hafner et al., "Mastering diverse control tasks through world models", Nature 2025, eq. 5:
    ``max(free, KL(sg(posterior) || prior))`` and ``max(free, KL(posterior || sg(prior)))``, where the divergence is
    summed over the categoricals *before* the maximum.

    Args:
        posterior_logits: Unnormalized log-probabilities, ``[*B, categoricals, classes]``.
        prior_logits: Unnormalized log-probabilities, same shape.
        free_nats: Divergence below which there is no gradient.
        unimix: Share of the uniform distribution in both.

    Returns:
        The divergence that trains the prior and the one that trains the posterior, ``[*B]`` each, nats.

    Raises:
        ShapeError: If the shapes differ.

    Example:
        >>> logits = torch.zeros(3, 4, 8)
        >>> dynamics, representation = categorical_kl_terms(logits, logits)
        >>> dynamics
        tensor([1., 1., 1.])
    """
    same_shape(posterior_logits=posterior_logits, prior_logits=prior_logits)
    post, prior = _log_probs(posterior_logits, unimix), _log_probs(prior_logits, unimix)
    dynamics = (post.detach().exp() * (post.detach() - prior)).sum((-1, -2))
    representation = (post.exp() * (post - prior.detach())).sum((-1, -2))
    return dynamics.clamp_min(free_nats), representation.clamp_min(free_nats)


def categorical_kl_balanced(
    posterior_logits: Tensor, prior_logits: Tensor, alpha: float = 0.8, free_nats: float = 0.0, unimix: float = 0.0
) -> Tensor:
    """Balanced divergence of posterior and prior with categorical states.

    Hafner et al., "Mastering Atari with discrete world models", 2021, algorithm 2: `alpha` times the divergence that
    trains the prior, and the rest times the one that trains the posterior.

    Args:
        posterior_logits: Unnormalized log-probabilities, ``[*B, categoricals, classes]``.
        prior_logits: Unnormalized log-probabilities, same shape.
        alpha: Weight of the term of the prior, in [0, 1].
        free_nats: Divergence below which there is no gradient.
        unimix: Share of the uniform distribution in both.

    Returns:
        The divergence, ``[*B]``, nats.

    Example:
        >>> logits = torch.zeros(3, 4, 8)
        >>> categorical_kl_balanced(logits, logits)
        tensor([0., 0., 0.])
    """
    dynamics, representation = categorical_kl_terms(posterior_logits, prior_logits, free_nats, unimix)
    return alpha * dynamics + (1 - alpha) * representation


def normal_kl(
    posterior_mean: Tensor, posterior_std: Tensor, prior_mean: Tensor, prior_std: Tensor, free_nats: float = 3.0
) -> Tensor:
    """Divergence of posterior and prior with normal states, summed over the state, at least `free_nats`.

    Hafner et al., "Dream to control", 2020, eq. 10 and appendix A.

    Args:
        posterior_mean: Mean of the posterior, ``[*B, s]``.
        posterior_std: Standard deviation of the posterior, same shape.
        prior_mean: Mean of the prior, same shape.
        prior_std: Standard deviation of the prior, same shape.
        free_nats: Divergence below which there is no gradient.

    Returns:
        The divergence, ``[*B]``, nats.

    Raises:
        ShapeError: If the shapes differ.

    Example:
        >>> zero, one = torch.zeros(2, 4), torch.ones(2, 4)
        >>> normal_kl(zero, one, one, one, free_nats=0.0)
        tensor([2., 2.])
    """
    same_shape(posterior_mean=posterior_mean, posterior_std=posterior_std, prior_mean=prior_mean, prior_std=prior_std)
    ratio, shift = posterior_std / prior_std, (posterior_mean - prior_mean) / prior_std
    return (0.5 * (ratio.square() + shift.square() - 1) - ratio.log()).sum(-1).clamp_min(free_nats)


def lambda_return(
    reward: Tensor,
    bootstrap: Tensor,
    last: Tensor,
    terminal: Tensor,
    gamma: float = 1 - 1 / 333,
    lmbda: float = 0.95,
    time_dim: int = -2,
) -> Tensor:
    """Return of each state, with the ends of episodes and of segments apart.

    Hafner et al., "Mastering diverse control tasks through world models", Nature 2025, eq. 6, as the official
    implementation computes it: ``R_t = r_{t+1} + live_{t+1} ((1 - cont_{t+1}) v_{t+1} + cont_{t+1} R_{t+1})`` with
    ``live = gamma (1 - terminal)`` and ``cont = lmbda (1 - last)``. Element `t` of each argument belongs to the
    outcome of step `t`, which is under ``next`` in a batch. After the last step the return is its bootstrap value.

    Args:
        reward: Reward of each step, ``[*B, T, 1]``.
        bootstrap: Value of the state that the step reached, same shape.
        last: Whether the segment ends there, so that the next step belongs to another one, same shape.
        terminal: Whether, or with which probability, the episode ended there, so that no value follows, same shape.
        gamma: Discount; 1 if `terminal` includes it.
        lmbda: Weight of longer returns, in [0, 1].
        time_dim: Dimension of time.

    Returns:
        The returns, ``[*B, T, 1]``; differentiable.

    Raises:
        ShapeError: If the shapes differ.

    Example:
        >>> one, zero = torch.ones(2, 1), torch.zeros(2, 1)
        >>> lambda_return(one, 10 * one, zero, zero, gamma=0.5, lmbda=1.0).flatten()
        tensor([4., 6.])
        >>> lambda_return(one, 10 * one, zero, torch.tensor([[1.0], [0.0]]), gamma=0.5, lmbda=1.0).flatten()
        tensor([1., 6.])
    """
    same_shape(reward=reward, bootstrap=bootstrap, last=last, terminal=terminal)
    live = (1 - terminal.to(reward.dtype)) * gamma
    follows = live * (1 - last.to(reward.dtype)) * lmbda
    # The recurrence ends with 0: the bootstrap of the last step takes the place of the return after it.
    steps = reward.shape[time_dim]
    final = (torch.arange(steps, device=reward.device) == steps - 1).to(reward.dtype)
    final = final.view(-1, *[1] * (-1 - time_dim if time_dim < 0 else reward.ndim - 1 - time_dim))
    weight = (live - follows) + follows * final
    return linear_recurrence(reward + weight * bootstrap, follows, time_dim)


def imagination_weight(continuation: Tensor, time_dim: int = -2) -> Tensor:
    """Probability that an imagined state is reached, which weights its losses.

    Hafner et al., "Mastering diverse control tasks through world models", Nature 2025, official implementation: the
    product of the predicted continuations up to *and including* that of the state itself, without gradient.

    Args:
        continuation: Probability, with or without discount, that the episode continues from each state, ``[*B, T, 1]``.
        time_dim: Dimension of time.

    Example:
        >>> imagination_weight(torch.tensor([[0.5], [1.0], [0.5]])).flatten()
        tensor([0.5000, 0.5000, 0.2500])
    """
    return continuation.detach().cumprod(time_dim)


def reinforce_objective(
    log_prob: Tensor, advantage: Tensor, entropy: Tensor, weight: Tensor, entropy_bonus: float = 3e-4
) -> Tensor:
    """Policy gradient of imagined steps, with an entropy bonus.

    Hafner et al., "Mastering diverse control tasks through world models", Nature 2025, eq. 7:
    ``-w (sg(A) log pi(a) + eta H)``, for discrete and continuous actions.

    Args:
        log_prob: Log-probability of the action, ``[*B]``.
        advantage: Advantage divided by the scale of returns, same shape; no gradient reaches it.
        entropy: Entropy of the policy, nats, same shape.
        weight: Probability that the state is reached, same shape; no gradient reaches it.
        entropy_bonus: Weight of the entropy.

    Raises:
        ShapeError: If the shapes differ.

    Example:
        >>> one = torch.ones(2)
        >>> reinforce_objective(-one, 2 * one, one, one, entropy_bonus=0.5)
        tensor([1.5000, 1.5000])
    """
    same_shape(log_prob=log_prob, advantage=advantage, entropy=entropy, weight=weight)
    return -weight.detach() * (log_prob * advantage.detach() + entropy_bonus * entropy)


def critic_regression(dist: Any, target: Tensor, slow_value: Tensor | None = None, slow_weight: float = 1.0) -> Tensor:
    """Negative log-likelihood of returns, and of the predictions of a slow copy of the critic.

    Hafner et al., "Mastering diverse control tasks through world models", Nature 2025, section "Critic learning".

    Args:
        dist: Distribution of the return, whose event is ``[1]``: two-hot over bins, or normal.
        target: Return, ``[*B, 1]``; no gradient reaches it.
        slow_value: Prediction of the slow copy, ``[*B, 1]``; None without a regulariser.
        slow_weight: Weight of the regulariser.

    Returns:
        The loss of each state, ``[*B]``.

    Example:
        >>> from torch.distributions import Independent, Normal
        >>> dist = Independent(Normal(torch.zeros(3, 1), 1.0), 1)
        >>> critic_regression(dist, torch.zeros(3, 1)).shape
        torch.Size([3])
    """
    loss = -dist.log_prob(target.detach())
    return loss if slow_value is None else loss - slow_weight * dist.log_prob(slow_value.detach())


def decayed_mean(elements: Tensor, rho: float, time_dim: int = -1) -> Tensor:
    """Mean over time of losses that count ``rho ** t``: predictions farther ahead are less certain.

    Hansen et al., "TD-MPC2: scalable, robust world models for continuous control", 2024, eq. 3.

    Args:
        elements: Losses, ``[*B, T]``.
        rho: Weight of each step in that of the step before, in [0, 1].
        time_dim: Dimension of time.

    Returns:
        The sum of weighted losses, divided by `T`, ``[*B]``.

    Example:
        >>> decayed_mean(torch.ones(1, 2), 0.5)
        tensor([0.7500])
    """
    steps = elements.shape[time_dim]
    weight = rho ** torch.arange(steps, dtype=elements.dtype, device=elements.device)
    return (elements.movedim(time_dim, -1) * weight).sum(-1) / steps


def episode_discount(length: float, denominator: float = 5.0, low: float = 0.95, high: float = 0.995) -> float:
    """Return TD-MPC2's discount for episodes of a length.

    Hansen et al., "TD-MPC2: scalable, robust world models for continuous control", 2024, appendix: with
    ``n = length / denominator`` it is ``clip((n - 1) / n, low, high)``.

    Args:
        length: Steps of an episode, above 0.
        denominator: Number of effective horizons in an episode.
        low: Smallest discount.
        high: Largest discount.

    Raises:
        ArgumentError: If `length` is not above 0.

    Example:
        >>> episode_discount(500), episode_discount(50), episode_discount(10_000)
        (0.99, 0.95, 0.995)
    """
    effective = as_number(length, "episode_discount", "length", above=0) / denominator
    return min(max((effective - 1) / effective, low), high)


class PercentileScale(nn.Module):
    """Moving range of returns, by which advantages or values are divided.

    Hafner et al., "Mastering diverse control tasks through world models", Nature 2025, eq. 7: the range from the 5th to
    the 95th percentile, as an exponential moving average of both that starts at 0 and is not debiased, at least 1, so
    that small returns are not scaled up to noise.

    Args:
        rate: Share of the new percentiles in the average, in [0, 1].
        low: Lower quantile, in [0, 1].
        high: Upper quantile, above `low`.
        least: Smallest scale, above 0.

    Attributes:
        percentiles: Average of the lower and the upper percentile, ``[2]``.

    Raises:
        ArgumentError: If an argument is out of its range.

    Example:
        >>> scale = PercentileScale(rate=0.5)
        >>> scale.update(torch.linspace(0, 100, 101))
        >>> scale()
        tensor(45.)
    """

    percentiles: Tensor

    def __init__(self, rate: float = 0.01, low: float = 0.05, high: float = 0.95, least: float = 1.0) -> None:
        super().__init__()
        self.rate = as_number(rate, "PercentileScale", "rate", least=0, most=1)
        self.low = as_number(low, "PercentileScale", "low", least=0, most=1)
        self.high = as_number(high, "PercentileScale", "high", above=self.low, most=1)
        self.least = as_number(least, "PercentileScale", "least", above=0)
        self.register_buffer("percentiles", torch.zeros(2))

    @torch.no_grad()
    def update(self, returns: Tensor) -> None:
        """Move the percentiles towards those of ``returns`` of any shape."""
        now = returns.detach().flatten().to(self.percentiles)
        wanted = torch.tensor([self.low, self.high], dtype=now.dtype, device=now.device)
        self.percentiles.lerp_(torch.quantile(now, wanted), self.rate)

    def forward(self) -> Tensor:
        """Return the scale, without dimensions."""
        return (self.percentiles[1] - self.percentiles[0]).clamp_min(self.least)
