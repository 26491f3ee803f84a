"""Policy-gradient surrogates as functions of tensors."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rl.core.checks import same_shape

__all__ = ["clipped_surrogate", "surrogate"]


def _ratio(log_ratio: Tensor) -> Tensor:
    """The probability ratio; at most the root of the largest number of its type, so that its gradient is finite."""
    return log_ratio.clamp_max(math.log(torch.finfo(log_ratio.dtype).max) / 2).exp()


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
