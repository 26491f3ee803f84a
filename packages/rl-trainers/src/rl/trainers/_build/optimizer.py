"""Optimizer steps without waste: small networks spend more time in Python than in arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["adam", "clip_gradients", "descend", "optimizer_by_name", "set_learning_rate"]


def adam(parameters: Iterable[Tensor], learning_rate: float, eps: float = 1e-5) -> torch.optim.Adam:
    """Adam in one fused kernel.

    Kingma and Ba, "Adam: a method for stochastic optimization", 2015.

    Args:
        parameters: the trained parameters; those without gradient are skipped.
        learning_rate: step size.
        eps: added to the denominator.
    """
    trained = [p for p in parameters if p.requires_grad]
    return torch.optim.Adam(trained, lr=learning_rate, eps=eps, fused=True)


def optimizer_by_name(name: str, parameters: Iterable[Tensor], learning_rate: float) -> torch.optim.Optimizer:
    """`adam`, or RMSprop with the constants of Stable-Baselines3.

    Tieleman and Hinton, "Lecture 6.5 - RMSProp", 2012.

    Args:
        name: ``"adam"`` or ``"rmsprop"``.
        parameters: the trained parameters; those without gradient are skipped.
        learning_rate: step size.
    """
    if name == "adam":
        return adam(parameters, learning_rate)
    trained = [p for p in parameters if p.requires_grad]
    return torch.optim.RMSprop(trained, lr=learning_rate, alpha=0.99, eps=1e-5, foreach=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Use another step size from now on."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def clip_gradients(parameters: Sequence[Tensor], max_norm: float) -> Tensor:
    """Scale all gradients down so that their common norm is at most `max_norm`.

    Args:
        parameters: whose gradients; all have one.
        max_norm: above 0.

    Returns:
        The norm before, a scalar; on other devices than the CPU nothing is synchronized.

    Example:
        >>> weight = torch.zeros(2, requires_grad=True)
        >>> weight.grad = torch.tensor([3.0, 4.0])
        >>> float(clip_gradients([weight], 1.0)), weight.grad
        (5.0, tensor([0.6000, 0.8000]))
    """
    kernels: Any = torch  # those on many tensors have no public names
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = torch.linalg.vector_norm(torch.stack(kernels._foreach_norm(gradients)))  # noqa: SLF001
    if norm.is_cpu:  # a number costs nothing there, and multiplies faster than a tensor
        scale = max_norm / (float(norm) + 1e-6)
        if scale < 1:
            kernels._foreach_mul_(gradients, scale)
    else:
        kernels._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp_max(1.0))
    return norm


def descend(loss: Tensor, optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor], max_norm: float) -> Tensor:
    """One gradient step.

    Args:
        loss: a scalar.
        optimizer: of `parameters`.
        parameters: all that it trains.
        max_norm: see `clip_gradients`.

    Returns:
        The gradient's norm before it was clipped.
    """
    for parameter in parameters:
        parameter.grad = None
    loss.backward()
    norm = clip_gradients(parameters, max_norm)
    optimizer.step()
    return norm
