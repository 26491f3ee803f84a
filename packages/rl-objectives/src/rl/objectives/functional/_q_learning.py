"""Q-learning as functions of tensors."""

from __future__ import annotations

from torch import Tensor

from rl.core.arguments import same_shape

__all__ = ["greedy_value"]


def greedy_value(action_value: Tensor, selector: Tensor | None = None) -> Tensor:
    """Value of the greedy action: that of the next state in the target of Q-learning.

    Mnih et al., "Human-level control through deep reinforcement learning", 2015, algorithm 1; with `selector` double
    Q-learning, van Hasselt et al., "Deep reinforcement learning with double Q-learning", 2016, eq. 4.

    Args:
        action_value: value of each action, ``[*B, n]``, units of return.
        selector: values that select the action, same shape; `action_value` if None.

    Returns:
        ``[*B, 1]``.

    Raises:
        ShapeError: if the shapes differ.

    Example:
        >>> import torch
        >>> value, other = torch.tensor([[1.0, 2.0]]), torch.tensor([[5.0, 4.0]])
        >>> greedy_value(value), greedy_value(value, other)
        (tensor([[2.]]), tensor([[1.]]))
    """
    if selector is None:
        return action_value.amax(-1, keepdim=True)
    same_shape(action_value=action_value, selector=selector)
    return action_value.gather(-1, selector.argmax(-1, keepdim=True))
