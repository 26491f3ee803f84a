"""Policy-gradient surrogates as functions of tensors."""

from __future__ import annotations

from torch import Tensor

from rl.core.checks import same_shape

__all__ = ["clipped_surrogate", "surrogate"]


def surrogate(log_ratio: Tensor, advantage: Tensor) -> Tensor:
    """Negated surrogate objective, elementwise.

    Schulman et al., "Proximal policy optimization algorithms", 2017, eq. 6.

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
    return -(log_ratio.exp() * advantage.detach())


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """Negated clipped surrogate objective, elementwise.

    Schulman et al., "Proximal policy optimization algorithms", 2017, eq. 7.

    Args:
        log_ratio: log pi(a|s) - log pi_old(a|s), ``[*B]``, nats.
        advantage: advantage of a in s, ``[*B]``, units of return; not differentiated.
        clip: half-width of the interval around ratio 1, in (0, 1).

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
    ratio, advantage = log_ratio.exp(), advantage.detach()
    return -(ratio * advantage).minimum(ratio.clamp(1 - clip, 1 + clip) * advantage)
