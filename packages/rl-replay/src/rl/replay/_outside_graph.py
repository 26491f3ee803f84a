"""What `torch.compile` is to leave alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import torch

__all__ = ["outside_graph"]

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def outside_graph(
    method: Callable[Arguments, Result], *arguments: Arguments.args, **options: Arguments.kwargs
) -> Result:
    """What `method` gives, as a break of the graph that `torch.compile` traces: arrays cannot be in one.

    Methods ask for it themselves, because a wrapper around each would cost small batches a twentieth of their time.
    """
    eager = cast("Callable[Arguments, Result]", torch.compiler.disable(method))
    return eager(*arguments, **options)
