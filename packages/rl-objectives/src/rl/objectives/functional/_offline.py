"""Learning from a fixed dataset and imitation of demonstrations, as functions of tensors."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from rl.core.arguments import same_shape
from rl.core.errors import ShapeError
from rl.objectives.functional._recurrence import linear_recurrence
from rl.objectives.functional._returns import time_index


def expectile_loss(difference: Tensor, expectile: float) -> Tensor:
    """Compute the asymmetric squared error, ``|expectile - 1(difference < 0)| * difference ** 2``, per element.

    Kostrikov et al., "Offline reinforcement learning with implicit Q-learning", 2022, eq. 5.

    Args:
        difference: Target minus prediction, any shape.
        expectile: Weight of positive differences, in [0, 1]; negative ones have ``1 - expectile``.

    Example:
        >>> expectile_loss(torch.tensor([2.0, -2.0]), 0.75)
        tensor([3., 1.])
    """
    return torch.where(difference < 0, 1 - expectile, expectile) * difference.square()


def advantage_weight(advantage: Tensor, temperature: float, largest: float = 100.0) -> Tensor:
    """Compute the bounded weight of the log-probability of an action, ``exp(temperature * advantage)``.

    Kostrikov et al., "Offline reinforcement learning with implicit Q-learning", 2022, eq. 7.

    Args:
        advantage: Advantage of the action, any shape, units of return.
        temperature: Inverse temperature; 0 gives all actions one weight.
        largest: Bound of the weight.

    Example:
        >>> advantage_weight(torch.tensor([0.0, 10.0]), 3.0)
        tensor([  1., 100.])
    """
    return (temperature * advantage).exp().clamp_max(largest)


def conservative_gap(sampled: Tensor, log_density: Tensor, taken: Tensor, temperature: float = 1.0) -> Tensor:
    """Compute how far the soft maximum of the values of sampled actions exceeds that of the action that was taken.

    Kumar et al., "Conservative Q-learning for offline reinforcement learning", 2020, eq. 4, with importance sampling as
    in appendix F.

    Args:
        sampled: Values of sampled actions, ``[n, *B]``, units of return.
        log_density: Log-density of these samples, ``[n, *B]``, nats.
        taken: Value of the action in the data, ``[*B]``.
        temperature: Temperature of the soft maximum, above 0.

    Returns:
        ``[*B]``.

    Raises:
        ShapeError: If `sampled` and `log_density` differ in shape.

    Example:
        >>> conservative_gap(torch.zeros(4, 1), torch.zeros(4, 1), torch.tensor([1.0])).exp()
        tensor([1.4715])
    """
    same_shape(sampled=sampled, log_density=log_density)
    soft = torch.logsumexp(sampled / temperature - log_density, 0) * temperature
    return soft - taken


def discriminator_loss(expert: Tensor, collected: Tensor) -> Tensor:
    """Compute the cross-entropy of a discriminator that tells the steps of an expert from those of a policy.

    Ho and Ermon, "Generative adversarial imitation learning", 2016, eq. 17, with the expert as the positive class:
    ``-log D(expert) - log(1 - D(collected))``, where D is the sigmoid of the logit.

    Args:
        expert: Logits of steps of the expert, any shape.
        collected: Logits of steps of the policy, same shape.

    Raises:
        ShapeError: If the shapes differ.

    Example:
        >>> discriminator_loss(torch.zeros(1), torch.zeros(1)).exp()
        tensor([4.])
    """
    same_shape(expert=expert, collected=collected)
    return softplus(-expert) + softplus(collected)


def imitation_reward(logits: Tensor) -> Tensor:
    """Compute the reward of a step, ``-log(1 - D)``: large if the discriminator takes it for one of the expert.

    Ho and Ermon, "Generative adversarial imitation learning", 2016, algorithm 1, with the expert as the positive class.
    It is positive, so that a policy gains from long episodes.

    Args:
        logits: Logits of the discriminator, any shape.

    Example:
        >>> imitation_reward(torch.zeros(1)).exp()
        tensor([2.])
    """
    return softplus(logits)


def style_divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """Compute the divergence of a normal distribution from the standard one, nats, summed over the last dimension.

    Kingma and Welling, "Auto-encoding variational Bayes", 2014, appendix B.

    Args:
        mean: Mean, ``[*B, d]``.
        log_variance: Logarithm of the variance, ``[*B, d]``.

    Raises:
        ShapeError: If the shapes differ.

    Example:
        >>> style_divergence(torch.tensor([1.0, 0.0]), torch.zeros(2))
        tensor(0.5000)
    """
    same_shape(mean=mean, log_variance=log_variance)
    return (mean.square() + log_variance.exp() - log_variance - 1).sum(-1) / 2


def distillation_error(prediction: Tensor, target: Tensor) -> Tensor:
    """Compute the mean squared error of the features of each state: loss of the predictor and intrinsic reward.

    Burda et al., "Exploration by random network distillation", 2018, section 2.2.

    Args:
        prediction: Features that the predictor computes, ``[*B, d]``.
        target: Features that the fixed network computes, same shape; not differentiated.

    Returns:
        ``[*B, 1]``.

    Raises:
        ShapeError: If the shapes differ.

    Example:
        >>> distillation_error(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 0.0]]))
        tensor([[2.]])
    """
    same_shape(prediction=prediction, target=target)
    return (prediction - target.detach()).square().mean(-1, keepdim=True)


class ReturnScale(NamedTuple):
    """Running statistics of discounted sums of rewards.

    Args:
        returns: Discounted sum of each stream up to its last step, ``[*B, F]``.
        seen: Number of sums.
        mean: Mean of the sums.
        squares: Sum of the squared differences from the mean.
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
        reward: Rewards ``[*B, T, F]`` of the steps after those of the batch before.
        scale: Statistics that the call before returned; None at the start.
        gamma: Discount of the intrinsic rewards, in [0, 1].
        time_dim: Dimension of time.

    Returns:
        The scaled rewards, same shape, and the statistics with this batch.

    Raises:
        ShapeError: If the batch has other streams than the statistics.

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
            f" {tuple(before.shape)}: pass batches of the same streams, or start with scale=None"
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
