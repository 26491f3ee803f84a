"""Methods that `torch.compile` does not trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import torch

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def untraced(method: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Make `method` a graph break: its NumPy arrays share memory with tensors, which a compiled graph would copy.

    Hot methods call ``untraced(method)(...)`` only while they are compiled: a decorator costs small batches 5 %.
    """
    return cast("Callable[Arguments, Result]", torch.compiler.disable(method))
