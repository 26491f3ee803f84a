"""What `torch.compile` leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import torch

__all__ = ["untraced"]

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def untraced(method: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """`method`, with all that it calls, as a break of the graph in compiled functions.

    For what computes with arrays that share memory with tensors: in a graph the two would part. To ask inside of the
    method whether it is traced is not enough: where a frame is not compiled, the compiler goes on with those below.
    """
    return cast("Callable[Arguments, Result]", torch.compiler.disable(method))
