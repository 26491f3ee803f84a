"""Random network distillation as functions of tensors: the error of the prediction, and the scale of rewards."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rl.core.arguments import same_shape
from rl.core.errors import ShapeError
from rl.objectives.functional._recurrence import linear_recurrence
from rl.objectives.functional._shared import time_index

__all__ = ["ReturnScale", "distillation_error", "scale_by_returns"]


def distillation_error(prediction: Tensor, target: Tensor) -> Tensor:
    """Mean squared error of the features of each state: loss of the predictor and intrinsic reward.

    Burda et al., "Exploration by random network distillation", 2018, section 2.2.

    Args:
        prediction: features that the predictor gives, ``[*B, d]``.
        target: features that the fixed network gives, same shape; not differentiated.

    Returns:
        ``[*B, 1]``.

    Raises:
        ShapeError: if the shapes differ.

    Example:
        >>> distillation_error(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 0.0]]))
        tensor([[2.]])
    """
    same_shape(prediction=prediction, target=target)
    return (prediction - target.detach()).square().mean(-1, keepdim=True)


class ReturnScale(NamedTuple):
    """Running statistics of discounted sums of rewards.

    Args:
        returns: discounted sum of each stream up to its last step, ``[*B, F]``.
        seen: number of sums.
        mean: their mean.
        squares: sum of their squared differences from the mean.
    """

    returns: Tensor
    seen: Tensor
    mean: Tensor
    squares: Tensor


def scale_by_returns(
    reward: Tensor, scale: ReturnScale | None = None, *, gamma: float = 0.99, time_dim: int = -2
) -> tuple[Tensor, ReturnScale]:
    """Divide rewards by the running standard deviation of their discounted sums.

    Burda et al., "Exploration by random network distillation", 2018, section 2.4. The sums ``R_t = r_t + gamma *
    R_{t-1}`` continue from batch to batch and over ends of episodes; no mean is subtracted.

    Args:
        reward: ``[*B, T, F]``, the steps after those of the batch before.
        scale: statistics that the call before returned; None at the start.
        gamma: discount of the intrinsic rewards, in [0, 1].
        time_dim: where time is.

    Returns:
        The scaled rewards, same shape, and the statistics with this batch.

    Raises:
        ShapeError: if the batch has other streams than the statistics.

    Example:
        >>> rewards = torch.tensor([[[4.0], [0.0]]])
        >>> scaled, scale = scale_by_returns(rewards, gamma=0.5)  # sums 4 and 2, standard deviation 1
        >>> scaled.flatten(), scale.returns.flatten()
        (tensor([4., 0.]), tensor([2.]))
    """
    time_dim = time_index(time_dim, reward)
    reward = reward.detach()
    streams = reward.select(time_dim, 0)
    before = torch.zeros_like(streams) if scale is None else scale.returns
    if before.shape != streams.shape:
        raise ShapeError(
            f"scale_by_returns got rewards of streams {tuple(streams.shape)} and statistics of"
            f" {tuple(before.shape)}: give batches of the same streams, or start with scale=None"
        )
    backwards = reward.flip(time_dim)
    first = torch.zeros_like(backwards)
    first.select(time_dim, reward.shape[time_dim] - 1).copy_(gamma * before)
    sums = linear_recurrence(backwards + first, torch.full_like(reward, gamma), time_dim)
    count = reward.new_tensor(sums.numel())
    mean = sums.mean()
    squares = (sums - mean).square().sum()
    if scale is not None:
        total, away = scale.seen + count, mean - scale.mean
        squares = scale.squares + squares + away.square() * scale.seen * count / total
        mean, count = scale.mean + away * count / total, total
    deviation = (squares / count).sqrt().clamp_min(torch.finfo(reward.dtype).eps)
    return reward / deviation, ReturnScale(sums.select(time_dim, 0), count, mean, squares)
