"""Checks that refuse to broadcast."""

from __future__ import annotations

from torch import Tensor

from rl.core.errors import ShapeError

__all__ = ["same_shape"]


def same_shape(**tensors: Tensor) -> None:
    """Raise unless all tensors have one shape.

    Args:
        tensors: by the name that the message shall use.

    Raises:
        ShapeError: if two shapes differ.

    Example:
        >>> import torch
        >>> same_shape(value=torch.zeros(3, 1), target=torch.zeros(3, 1))
        >>> same_shape(value=torch.zeros(3), target=torch.zeros(3, 1))
        Traceback (most recent call last):
        ...
        rl.core.errors.ShapeError: expected one shape, got value (3,), target (3, 1): ...
    """
    shapes = [t.shape for t in tensors.values()]
    if any(shape != shapes[0] for shape in shapes[1:]):
        listed = ", ".join(f"{name} {tuple(t.shape)}" for name, t in tensors.items())
        raise ShapeError(
            f"expected one shape, got {listed}: they would broadcast; per-step scalars keep a"
            " trailing dimension of 1, log-probabilities do not"
        )
