"""Policy gradients and their surrogates as functions of tensors."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rl.core.arguments import same_shape

__all__ = ["adapted_penalty", "clipped_surrogate", "penalized_surrogate", "policy_gradient", "surrogate"]


def _ratio(log_ratio: Tensor) -> Tensor:
    """The probability ratio; at most the root of the largest number of its type, so that its gradient is finite."""
    return log_ratio.clamp_max(math.log(torch.finfo(log_ratio.dtype).max) / 2).exp()


def policy_gradient(log_prob: Tensor, advantage: Tensor) -> Tensor:
    """Negated log-probability times advantage, elementwise: its gradient is the negated policy gradient.

    Williams, "Simple statistical gradient-following algorithms for connectionist reinforcement learning", 1992, eq. 11;
    with a critic, Mnih et al., "Asynchronous methods for deep reinforcement learning", 2016, section 4.

    Args:
        log_prob: of the action that was taken, ``[*B]``, nats.
        advantage: of that action, or its return, ``[*B]``, units of return; not differentiated.

    Returns:
        Loss per element, ``[*B]``.

    Raises:
        ShapeError: if the shapes differ.

    Example:
        >>> policy_gradient(torch.tensor([-0.5]), torch.tensor([4.0]))
        tensor([2.])
    """
    same_shape(log_prob=log_prob, advantage=advantage)
    return -log_prob * advantage.detach()


def surrogate(log_ratio: Tensor, advantage: Tensor) -> Tensor:
    """Negated surrogate objective, elementwise.

    Schulman et al., "Proximal policy optimization algorithms", 2017, eq. 6. Ratios above e^44 (float32) count as that.

    Args:
        log_ratio: log pi(a|s) - log pi_old(a|s), ``[*B]``, nats.
        advantage: advantage of a in s, ``[*B]``, units of return; not differentiated.

    Returns:
        Loss per element, ``[*B]``.

    Raises:
        ShapeError: if the shapes differ.

    Example:
        >>> import torch
        >>> surrogate(torch.zeros(1), torch.tensor([3.0]))
        tensor([-3.])
    """
    same_shape(log_ratio=log_ratio, advantage=advantage)
    return -(_ratio(log_ratio) * advantage.detach())


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, clip: float | tuple[float, float]) -> Tensor:
    """Negated clipped surrogate objective, elementwise.

    Schulman et al., "Proximal policy optimization algorithms", 2017, eq. 7. Ratios above e^44 (float32) count as that.

    Args:
        log_ratio: log pi(a|s) - log pi_old(a|s), ``[*B]``, nats.
        advantage: advantage of a in s, ``[*B]``, units of return; not differentiated.
        clip: half-width of the interval around ratio 1, in (0, 1); or a pair, how far it reaches below and above 1.

    Returns:
        Loss per element, ``[*B]``.

    Raises:
        ShapeError: if the shapes differ.

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
    """Negated surrogate objective with a penalty on the distance of the policies, elementwise.

    Schulman et al., "Proximal policy optimization algorithms", 2017, eq. 8.

    Args:
        log_ratio: log pi(a|s) - log pi_old(a|s), ``[*B]``, nats.
        advantage: advantage of a in s, ``[*B]``, units of return; not differentiated.
        kl: KL(pi_old || pi) in s, ``[*B]``, nats.
        beta: weight of the penalty, units of return for each nat.

    Returns:
        Loss per element, ``[*B]``.

    Raises:
        ShapeError: if the shapes differ.

    Example:
        >>> penalized_surrogate(torch.zeros(1), torch.tensor([3.0]), torch.tensor([0.5]), 2.0)
        tensor([-2.])
    """
    same_shape(log_ratio=log_ratio, advantage=advantage, kl=kl)
    return surrogate(log_ratio, advantage) + beta * kl


def adapted_penalty(beta: Tensor, kl: Tensor, target: float, increment: float = 2.0, decrement: float = 0.5) -> Tensor:
    """Weight of the penalty for the next update: larger where the policies are far apart, smaller where they are near.

    Schulman et al., "Proximal policy optimization algorithms", 2017, section 4: times `increment` above 1.5 times the
    target, times `decrement` below the target divided by 1.5.

    Args:
        beta: present weight, without dimensions.
        kl: mean of KL(pi_old || pi), without dimensions, nats; NaN keeps the weight.
        target: wanted mean, nats.
        increment: factor of at least 1.
        decrement: factor in (0, 1].

    Returns:
        The new weight, without gradient.

    Example:
        >>> [adapted_penalty(torch.tensor(1.0), torch.tensor(kl), 0.01).item() for kl in (0.1, 0.01, 0.001)]
        [2.0, 1.0, 0.5]
    """
    beta, kl = beta.detach(), kl.detach()
    grown = torch.where(kl > 1.5 * target, beta * increment, beta)
    return torch.where(kl < target / 1.5, beta * decrement, grown)
