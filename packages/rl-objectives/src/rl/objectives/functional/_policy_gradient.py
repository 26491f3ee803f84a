"""Policy gradients and their surrogates as functions of tensors."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rl.core.arguments import same_shape

__all__ = ["clipped_surrogate", "policy_gradient", "surrogate"]


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
