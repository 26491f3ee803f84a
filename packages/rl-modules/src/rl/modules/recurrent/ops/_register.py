"""What the operators of both cells share: their library, how they are registered, and small pieces of them.

An operator is one recurrent layer over a sequence: opaque to the compiler, its gradient written by hand. The loop over
time builds no graph. The backward pass computes all that can be computed for all steps at once in that way, and each
weight's gradient as one product. Gates are kept, or computed again from the states, in one product too. The operators
differentiate once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor

from rl.modules.recurrent._precision import as_told
from rl.modules.recurrent.ops._kernels import Resets

__all__ = ["column_sums", "define", "dense", "flat", "nothing", "products"]

_library = torch.library.Library("rl_modules", "FRAGMENT")


def define(
    schema: str,
    run: Callable[..., Any],
    fake: Callable[..., Any],
    gradient: Callable[..., Any] | None = None,
    setup: Callable[..., Any] | None = None,
) -> Any:
    """Register an operator for all devices, with the shapes of its results and its gradient; give its overload.

    Args:
        schema: ``"name(arguments) -> results"``.
        run: computes it.
        fake: gives empty results.
        gradient: of it; a second derivative is refused if None.
        setup: keeps what the gradient needs.
    """
    name = schema.partition("(")[0]
    _library.define(schema)
    _library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"rl_modules::{name}", fake, lib=_library)
    torch.library.register_autograd(f"rl_modules::{name}", gradient or _once, setup_context=setup, lib=_library)
    return getattr(torch.ops.rl_modules, name).default


@contextmanager
def products(device: torch.device, precision: str | None) -> Generator[None]:
    """Matrix products in a precision: ``"tf32"`` where the device has it, exact ones for the other names."""
    with as_told(device):
        if precision is None or device.type != "cuda":
            yield
            return
        settings = torch.backends.cuda.matmul
        before = settings.fp32_precision
        settings.fp32_precision = "tf32" if precision == "tf32" else "ieee"
        try:
            yield
        finally:
            settings.fp32_precision = before


def flat(sequence: Tensor) -> Tensor:
    return sequence.reshape(-1, sequence.shape[-1])


def column_sums(matrix: Tensor) -> Tensor:
    """As ``matrix.sum(0)``, in half of the time."""
    return matrix.new_ones(len(matrix)) @ matrix


def dense(rows: Tensor | None, resets: Resets | None, like: Tensor) -> Tensor:
    """Rows where the state was reset as ``[T, B, H]``, zero elsewhere."""
    whole = torch.zeros_like(like)
    if rows is not None and resets is not None:
        whole.flatten(0, 1).index_copy_(0, resets.at, rows)
    return whole


def nothing(like: Tensor) -> Tensor:
    return like.new_empty(0)


def _once(*_: Any) -> NoReturn:
    raise RuntimeError(
        "the recurrent back end 'scan' differentiates once: for gradients of gradients run the recurrence step by step"
    )
