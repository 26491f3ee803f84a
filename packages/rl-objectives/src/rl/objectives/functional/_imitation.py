"""Imitation of demonstrations, as functions of tensors."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import softplus

from rl.core.arguments import same_shape

__all__ = ["discriminator_loss", "imitation_reward", "style_divergence"]


def discriminator_loss(expert: Tensor, collected: Tensor) -> Tensor:
    """Cross-entropy of a discriminator that tells the steps of an expert from those of a policy.

    Ho and Ermon, "Generative adversarial imitation learning", 2016, eq. 17, with the expert as the positive class:
    ``-log D(expert) - log(1 - D(collected))``, where D is the sigmoid of the logit.

    Args:
        expert: logits of steps of the expert, any shape.
        collected: logits of steps of the policy, same shape.

    Raises:
        ShapeError: if the shapes differ.

    Example:
        >>> import torch
        >>> discriminator_loss(torch.zeros(1), torch.zeros(1)).exp()
        tensor([4.])
    """
    same_shape(expert=expert, collected=collected)
    return softplus(-expert) + softplus(collected)


def imitation_reward(logits: Tensor) -> Tensor:
    """Reward of a step, ``-log(1 - D)``: large if the discriminator takes it for one of the expert.

    Ho and Ermon, "Generative adversarial imitation learning", 2016, algorithm 1, with the expert as the positive class.
    It is positive, so that a policy gains from long episodes.

    Args:
        logits: of the discriminator, any shape.

    Example:
        >>> import torch
        >>> imitation_reward(torch.zeros(1)).exp()
        tensor([2.])
    """
    return softplus(logits)


def style_divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """Divergence of a normal distribution from the standard normal one, nats; summed over the last dimension.

    Kingma and Welling, "Auto-encoding variational Bayes", 2014, appendix B.

    Args:
        mean: ``[*B, d]``.
        log_variance: logarithm of the variance, ``[*B, d]``.

    Raises:
        ShapeError: if the shapes differ.

    Example:
        >>> import torch
        >>> style_divergence(torch.tensor([1.0, 0.0]), torch.zeros(2))
        tensor(0.5000)
    """
    same_shape(mean=mean, log_variance=log_variance)
    return (mean.square() + log_variance.exp() - log_variance - 1).sum(-1) / 2
