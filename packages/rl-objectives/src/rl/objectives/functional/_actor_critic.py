"""Off-policy actor-critic methods as functions of tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl.core.arguments import same_shape
from rl.core.errors import ShapeError

__all__ = ["expected_soft_value", "smoothed_action", "soft_value", "temperature_loss", "truncated_quantiles"]


def soft_value(action_values: Tensor, log_prob: Tensor, alpha: Tensor | float) -> Tensor:
    """Entropy-regularized value of sampled actions: the smallest critic minus the weighted log-probability.

    Haarnoja et al., "Soft actor-critic algorithms and applications", 2018, eq. 3, with the minimum over critics of
    Fujimoto et al., "Addressing function approximation error in actor-critic methods", 2018, eq. 10.

    Args:
        action_values: values of the actions by critic, ``[n, *B, 1]``, units of return.
        log_prob: log-probability of the actions, ``[*B]``, nats.
        alpha: temperature.

    Returns:
        ``[*B, 1]``.

    Raises:
        ShapeError: if the shapes do not agree.

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
    """Entropy-regularized value of a state with discrete actions, by the smallest critic.

    Christodoulou, "Soft actor-critic for discrete action settings", 2019, eq. 10.

    Args:
        action_values: values of all actions by critic, ``[k, *B, n]``, units of return.
        log_probs: log-probabilities of the actions, ``[*B, n]``, nats; minus infinity for those that are not allowed.
        alpha: temperature.

    Returns:
        ``[*B, 1]``.

    Raises:
        ShapeError: if the shapes do not agree.

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
    """Loss of the temperature: it rises while the entropy is below its target.

    Haarnoja et al., "Soft actor-critic algorithms and applications", 2018, eq. 18, with the logarithm of the
    temperature in place of the temperature, as in the authors' code.

    Args:
        log_alpha: logarithm of the temperature, ``[]``.
        log_prob: log-probability of actions of the policy, ``[*B]``, nats; no gradient.
        target_entropy: nats.

    Returns:
        ``[*B]``.

    Example:
        >>> temperature_loss(torch.tensor(2.0), torch.tensor([-1.0, 3.0]), -1.0)
        tensor([ 4., -4.])
    """
    return -log_alpha * (log_prob.detach() + target_entropy)


def smoothed_action(action: Tensor, noise: Tensor, noise_clip: float | Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Action of the target policy with clipped noise, within its bounds.

    Fujimoto et al., "Addressing function approximation error in actor-critic methods", 2018, eq. 14.

    Args:
        action: ``[*B, k]``.
        noise: the same shape.
        noise_clip: largest absolute noise, a number or ``[k]``.
        low: lower bounds, ``[k]``.
        high: upper bounds, ``[k]``.

    Returns:
        ``[*B, k]``.

    Raises:
        ShapeError: if the shapes differ.

    Example:
        >>> one = torch.ones(1)
        >>> smoothed_action(torch.tensor([[0.9]]), torch.tensor([[3.0]]), 0.05, -one, one)
        tensor([[0.9500]])
    """
    same_shape(action=action, noise=noise)
    limit: Any = noise_clip  # torch types both bounds as one kind
    return torch.clamp(action + noise.clamp(-limit, limit), low, high)


def truncated_quantiles(quantiles: Tensor, dropped: int) -> Tensor:
    """The quantiles of all critics together without the largest ones, in ascending order.

    Kuznetsov et al., "Controlling overestimation bias with truncated mixture of continuous distributional quantile
    critics", 2020, eq. 9 and 10.

    Args:
        quantiles: by critic, ``[k, *B, n]``, units of return.
        dropped: number of quantiles that are dropped for each critic.

    Returns:
        ``[*B, k * (n - dropped)]``.

    Raises:
        ShapeError: if nothing is left.

    Example:
        >>> truncated_quantiles(torch.tensor([[[1.0, 5.0]], [[3.0, 2.0]]]), 1)
        tensor([[1., 2.]])
    """
    critics, count = quantiles.shape[0], quantiles.shape[-1]
    if dropped >= count:
        raise ShapeError(f"{dropped} of {count} quantiles of each critic are dropped: nothing is left")
    pooled = quantiles.movedim(0, -2).flatten(-2)
    return pooled.sort(-1).values[..., : critics * (count - dropped)]
