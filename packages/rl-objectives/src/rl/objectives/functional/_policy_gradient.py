"""Policy gradients and their surrogates as functions of tensors."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from rl.core.arguments import same_shape
from rl.core.errors import ShapeError


def _ratio(log_ratio: Tensor) -> Tensor:
    """Compute the probability ratio, at most the root of the largest number of its dtype: its gradient is finite."""
    return log_ratio.clamp_max(math.log(torch.finfo(log_ratio.dtype).max) / 2).exp()


def policy_gradient(log_prob: Tensor, advantage: Tensor) -> Tensor:
    """Compute the negated log-probability times advantage, elementwise: its gradient is the negated policy gradient.

    Williams, "Simple statistical gradient-following algorithms for connectionist reinforcement learning", 1992, eq. 11;
    with a critic, Mnih et al., "Asynchronous methods for deep reinforcement learning", 2016, section 4.

    Args:
        log_prob: Log-probability of the action that was taken, ``[*B]``, nats.
        advantage: Advantage of that action, or its return, ``[*B]``, units of return; not differentiated.

    Returns:
        Loss per element, ``[*B]``.

    Raises:
        ShapeError: If the shapes differ.

    Example:
        >>> policy_gradient(torch.tensor([-0.5]), torch.tensor([4.0]))
        tensor([2.])
    """
    same_shape(log_prob=log_prob, advantage=advantage)
    return -log_prob * advantage.detach()


def surrogate(log_ratio: Tensor, advantage: Tensor) -> Tensor:
    """Compute the negated surrogate objective, elementwise.

    Schulman et al., "Proximal policy optimization algorithms", 2017, eq. 6. Ratios above e^44 (float32) count as that.

    Args:
        log_ratio: Log pi(a|s) - log pi_old(a|s), ``[*B]``, nats.
        advantage: Advantage of a in s, ``[*B]``, units of return; not differentiated.

    Returns:
        Loss per element, ``[*B]``.

    Raises:
        ShapeError: If the shapes differ.

    Example:
        >>> import torch
        >>> surrogate(torch.zeros(1), torch.tensor([3.0]))
        tensor([-3.])
    """
    same_shape(log_ratio=log_ratio, advantage=advantage)
    return -(_ratio(log_ratio) * advantage.detach())


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, clip: float | tuple[float, float]) -> Tensor:
    """Compute the negated clipped surrogate objective, elementwise.

    Schulman et al., "Proximal policy optimization algorithms", 2017, eq. 7. Ratios above e^44 (float32) count as that.

    Args:
        log_ratio: Log pi(a|s) - log pi_old(a|s), ``[*B]``, nats.
        advantage: Advantage of a in s, ``[*B]``, units of return; not differentiated.
        clip: Half-width of the interval around ratio 1, in (0, 1); or a pair, how far it reaches below and above 1.

    Returns:
        Loss per element, ``[*B]``.

    Raises:
        ShapeError: If the shapes differ.

    Example:
        >>> import torch
        >>> clipped_surrogate(torch.tensor([1.5]).log(), torch.ones(1), 0.2)
        tensor([-1.2000])
    """
    same_shape(log_ratio=log_ratio, advantage=advantage)
    below, above = clip if isinstance(clip, tuple) else (clip, clip)
    ratio, advantage = _ratio(log_ratio), advantage.detach()
    return -(ratio * advantage).minimum(ratio.clamp(1 - below, 1 + above) * advantage)


def penalized_surrogate(log_ratio: Tensor, advantage: Tensor, kl: Tensor, beta: float | Tensor) -> Tensor:
    """Compute the negated surrogate objective with a penalty on the distance of the policies, elementwise.

    Schulman et al., "Proximal policy optimization algorithms", 2017, eq. 8.

    Args:
        log_ratio: Log pi(a|s) - log pi_old(a|s), ``[*B]``, nats.
        advantage: Advantage of a in s, ``[*B]``, units of return; not differentiated.
        kl: KL(pi_old || pi) in s, ``[*B]``, nats.
        beta: Weight of the penalty, units of return for each nat.

    Returns:
        Loss per element, ``[*B]``.

    Raises:
        ShapeError: If the shapes differ.

    Example:
        >>> penalized_surrogate(torch.zeros(1), torch.tensor([3.0]), torch.tensor([0.5]), 2.0)
        tensor([-2.])
    """
    same_shape(log_ratio=log_ratio, advantage=advantage, kl=kl)
    return surrogate(log_ratio, advantage) + beta * kl


def adapted_penalty(beta: Tensor, kl: Tensor, target: float, increment: float = 2.0, decrement: float = 0.5) -> Tensor:
    """Compute the weight of the penalty for the next update, larger after a large divergence and vice versa.

    Schulman et al., "Proximal policy optimization algorithms", 2017, section 4: times `increment` above 1.5 times the
    target, times `decrement` below the target divided by 1.5.

    Args:
        beta: Present weight, without dimensions.
        kl: Mean of KL(pi_old || pi), without dimensions, nats; NaN keeps the weight.
        target: Wanted mean, nats.
        increment: Factor of at least 1.
        decrement: Factor in (0, 1].

    Returns:
        The new weight, without gradient.

    Example:
        >>> [adapted_penalty(torch.tensor(1.0), torch.tensor(kl), 0.01).item() for kl in (0.1, 0.01, 0.001)]
        [2.0, 1.0, 0.5]
    """
    beta, kl = beta.detach(), kl.detach()
    grown = torch.where(kl > 1.5 * target, beta * increment, beta)
    return torch.where(kl < target / 1.5, beta * decrement, grown)


def soft_value(action_values: Tensor, log_prob: Tensor, alpha: Tensor | float) -> Tensor:
    """Compute the entropy-regularized value of sampled actions: the smallest critic minus the weighted log-probability.

    Haarnoja et al., "Soft actor-critic algorithms and applications", 2018, eq. 3, with the minimum over critics of
    Fujimoto et al., "Addressing function approximation error in actor-critic methods", 2018, eq. 10.

    Args:
        action_values: Values of the actions by critic, ``[n, *B, 1]``, units of return.
        log_prob: Log-probability of the actions, ``[*B]``, nats.
        alpha: Temperature.

    Returns:
        ``[*B, 1]``.

    Raises:
        ShapeError: If the shapes do not agree.

    Example:
        >>> soft_value(torch.tensor([[[2.0]], [[3.0]]]), torch.tensor([-1.0]), 0.5)
        tensor([[2.5000]])
    """
    if action_values.shape[1:] != (*log_prob.shape, 1):
        raise ShapeError(
            f"action values have shape {tuple(action_values.shape)} and log-probabilities {tuple(log_prob.shape)};"
            " expected [n, *B, 1] and [*B]: a distribution with one log-probability for each dimension needs"
            " torch.distributions.Independent"
        )
    return action_values.amin(0) - alpha * log_prob.unsqueeze(-1)


def expected_soft_value(action_values: Tensor, log_probs: Tensor, alpha: Tensor | float) -> Tensor:
    """Compute the entropy-regularized value of a state with discrete actions, by the smallest critic.

    Christodoulou, "Soft actor-critic for discrete action settings", 2019, eq. 10.

    Args:
        action_values: Values of all actions by critic, ``[k, *B, n]``, units of return.
        log_probs: Log-probabilities of the actions, ``[*B, n]``, nats; minus infinity for those that are not allowed.
        alpha: Temperature.

    Returns:
        ``[*B, 1]``.

    Raises:
        ShapeError: If the shapes do not agree.

    Example:
        >>> even = torch.tensor([[0.5, 0.5]]).log()
        >>> expected_soft_value(torch.tensor([[[1.0, 3.0]], [[2.0, 1.0]]]), even, 0.0)
        tensor([[1.]])
    """
    if action_values.shape[1:] != log_probs.shape:
        raise ShapeError(
            f"action values have shape {tuple(action_values.shape)} and log-probabilities {tuple(log_probs.shape)};"
            " expected [k, *B, n] and [*B, n]"
        )
    probs = log_probs.exp()
    allowed = log_probs.masked_fill(probs == 0, 0)  # 0 * log(0) is 0, and has no gradient
    return (probs * (action_values.amin(0) - alpha * allowed)).sum(-1, keepdim=True)


def temperature_loss(log_alpha: Tensor, log_prob: Tensor, target_entropy: float | Tensor) -> Tensor:
    """Compute the loss of the temperature: it rises while the entropy is below its target.

    Haarnoja et al., "Soft actor-critic algorithms and applications", 2018, eq. 18, with the logarithm of the
    temperature in place of the temperature, as in the authors' code.

    Args:
        log_alpha: Logarithm of the temperature, ``[]``.
        log_prob: Log-probability of actions of the policy, ``[*B]``, nats; no gradient.
        target_entropy: Entropy that the temperature is learned for, nats.

    Returns:
        ``[*B]``.

    Example:
        >>> temperature_loss(torch.tensor(2.0), torch.tensor([-1.0, 3.0]), -1.0)
        tensor([ 4., -4.])
    """
    return -log_alpha * (log_prob.detach() + target_entropy)


def smoothed_action(action: Tensor, noise: Tensor, noise_clip: float | Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Compute the action of the target policy with clipped noise, within its bounds.

    Fujimoto et al., "Addressing function approximation error in actor-critic methods", 2018, eq. 14.

    Args:
        action: Action, ``[*B, k]``.
        noise: Noise, same shape.
        noise_clip: Largest absolute noise, a number or ``[k]``.
        low: Lower bounds, ``[k]``.
        high: Upper bounds, ``[k]``.

    Returns:
        ``[*B, k]``.

    Raises:
        ShapeError: If the shapes differ.

    Example:
        >>> one = torch.ones(1)
        >>> smoothed_action(torch.tensor([[0.9]]), torch.tensor([[3.0]]), 0.05, -one, one)
        tensor([[0.9500]])
    """
    same_shape(action=action, noise=noise)
    limit: Any = noise_clip  # torch types both bounds as one kind
    return torch.clamp(action + noise.clamp(-limit, limit), low, high)


def truncated_quantiles(quantiles: Tensor, dropped: int) -> Tensor:
    """Compute the quantiles of all critics together without the largest ones, in ascending order.

    Kuznetsov et al., "Controlling overestimation bias with truncated mixture of continuous distributional quantile
    critics", 2020, eq. 9 and 10.

    Args:
        quantiles: Quantiles by critic, ``[k, *B, n]``, units of return.
        dropped: Number of quantiles that are dropped for each critic.

    Returns:
        ``[*B, k * (n - dropped)]``.

    Raises:
        ShapeError: If nothing is left.

    Example:
        >>> truncated_quantiles(torch.tensor([[[1.0, 5.0]], [[3.0, 2.0]]]), 1)
        tensor([[1., 2.]])
    """
    critics, count = quantiles.shape[0], quantiles.shape[-1]
    if dropped >= count:
        raise ShapeError(f"{dropped} of {count} quantiles of each critic are dropped: nothing is left")
    pooled = quantiles.movedim(0, -2).flatten(-2)
    return pooled.sort(-1).values[..., : critics * (count - dropped)]
