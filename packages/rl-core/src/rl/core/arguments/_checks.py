"""Checks of arguments: integers, and shapes that must not broadcast."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

from rl.core.errors import ShapeError, SpecError

__all__ = ["as_integer", "same_shape"]


def as_integer(value: Any, owner: str, name: str, least: int | None = None) -> int:
    """Convert an argument to a Python integer.

    Args:
        value: an integer: of Python, of NumPy, or a tensor of an integer dtype without dimensions. No bool, no float.
        owner: the component that the message names.
        name: the argument that the message names.
        least: smallest value; any if None.

    Raises:
        SpecError: if the value is no integer, or below `least`.

    Example:
        >>> import torch
        >>> as_integer(torch.tensor(3), "MLP", "depth", least=0)
        3
        >>> as_integer(2.0, "MLP", "depth")
        Traceback (most recent call last):
        ...
        rl.core.errors.SpecError: MLP: depth must be an integer, got 2.0
    """
    if type(value) is not int:
        boolean = isinstance(value, bool) or getattr(value, "dtype", None) is torch.bool
        if boolean or getattr(value, "shape", ()) or not hasattr(value, "__index__"):
            raise SpecError(f"{owner}: {name} must be an integer, got {value!r:.100}")
        try:
            value = operator.index(value)
        except TypeError as error:
            raise SpecError(f"{owner}: {name} must be an integer, got {value!r:.100}") from error
    if least is not None and value < least:
        raise SpecError(f"{owner}: {name} must be at least {least}, got {value}")
    return value


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
