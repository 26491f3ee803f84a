"""Learning from a fixed data set, as functions of tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from rl.core.arguments import same_shape

__all__ = ["advantage_weight", "conservative_gap", "expectile_loss"]


def expectile_loss(difference: Tensor, expectile: float) -> Tensor:
    """Asymmetric squared error, ``|expectile - 1(difference < 0)| * difference ** 2``, per element.

    Kostrikov et al., "Offline reinforcement learning with implicit Q-learning", 2022, eq. 5.

    Args:
        difference: target minus prediction, any shape.
        expectile: weight of positive differences, in (0, 1); negative ones have ``1 - expectile``.

    Example:
        >>> expectile_loss(torch.tensor([2.0, -2.0]), 0.75)
        tensor([3., 1.])
    """
    return torch.where(difference < 0, 1 - expectile, expectile) * difference.square()


def advantage_weight(advantage: Tensor, temperature: float, largest: float = 100.0) -> Tensor:
    """Weight of the log-probability of an action by its advantage, ``exp(temperature * advantage)``, bounded.

    Kostrikov et al., "Offline reinforcement learning with implicit Q-learning", 2022, eq. 7.

    Args:
        advantage: any shape, units of return.
        temperature: inverse temperature; 0 weights all actions alike.
        largest: bound of the weight.

    Example:
        >>> advantage_weight(torch.tensor([0.0, 10.0]), 3.0)
        tensor([  1., 100.])
    """
    return (temperature * advantage).exp().clamp_max(largest)


def conservative_gap(sampled: Tensor, log_density: Tensor, taken: Tensor, temperature: float = 1.0) -> Tensor:
    """How far the soft maximum of the values of sampled actions exceeds that of the action that was taken.

    Kumar et al., "Conservative Q-learning for offline reinforcement learning", 2020, eq. 4, with importance sampling as
    in appendix F.

    Args:
        sampled: values of sampled actions, ``[n, *B]``, units of return.
        log_density: log-density of these samples, ``[n, *B]``, nats.
        taken: value of the action in the data, ``[*B]``.
        temperature: of the soft maximum, above 0.

    Returns:
        ``[*B]``.

    Raises:
        ShapeError: if `sampled` and `log_density` differ in shape.

    Example:
        >>> conservative_gap(torch.zeros(4, 1), torch.zeros(4, 1), torch.tensor([1.0])).exp()
        tensor([1.4715])
    """
    same_shape(sampled=sampled, log_density=log_density)
    soft = torch.logsumexp(sampled / temperature - log_density, 0) * temperature
    return soft - taken
