"""Shared parts of the returns: shape checks, flags, weights, and the loop over time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rl.core.errors import ShapeError

__all__ = ["Coefficient", "Recurrence", "check_shapes", "loop", "time_index", "weight"]

Recurrence = Callable[[Tensor, Tensor, int], Tensor]
Coefficient = float | Tensor


def loop(d: Tensor, c: Tensor, time_dim: int) -> Tensor:
    """``x_t = d_t + c_t * x_{t+1}``, and ``x_t = d_t`` where ``c_t`` is 0, as a loop over time."""
    if not d.shape[time_dim]:
        return d.clone()
    following = torch.zeros_like(d.select(time_dim, 0))
    rows: list[Tensor] = []
    for d_t, c_t in zip(reversed(d.unbind(time_dim)), reversed(c.unbind(time_dim)), strict=True):
        following = d_t + c_t * following.masked_fill(c_t == 0, 0)
        rows.append(following)
    return torch.stack(rows[::-1], time_dim)


def check_shapes(reward: Tensor, **others: Tensor | float | None) -> None:
    """Raise if shapes differ, so that nothing broadcasts."""
    for name, other in others.items():
        if not isinstance(other, Tensor) or other.shape == reward.shape:
            continue
        if name in ("gamma", "lmbda"):
            if other.numel() == 1 and other.ndim <= reward.ndim:
                continue
            raise ShapeError(
                f"{name} has shape {tuple(other.shape)} and reward {tuple(reward.shape)}: give a number, or a tensor"
                " of the reward's shape"
            )
        raise ShapeError(
            f"{name} has shape {tuple(other.shape)} and reward {tuple(reward.shape)}: they would broadcast; values,"
            " rewards and flags all are [*B, T, F], F = 1 included"
        )


def weight(value: Coefficient, like: Tensor, cut: Tensor) -> Tensor:
    """`value` in the shape of `like`, zero where `cut`."""
    if not isinstance(value, Tensor):
        return torch.full_like(like, value).masked_fill_(cut, 0)
    return value.to(like).expand(like.shape).masked_fill(cut, 0)


def time_index(time_dim: int, reward: Tensor) -> int:
    if not -reward.ndim <= time_dim < reward.ndim:
        raise ShapeError(
            f"time_dim is {time_dim}, which a reward of shape {tuple(reward.shape)} does not have: rewards are"
            " [*B, T, F], with the feature dimension"
        )
    return time_dim % reward.ndim
