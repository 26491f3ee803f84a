"""Registration of the recurrent operators, and functions that both share.

An operator is one recurrent layer over a sequence, opaque to the compiler, with a hand-written gradient. The loop over
time builds no graph. The gradient of each weight is one product over all steps. Gates are kept, or recomputed from the
states in one product. The operators are differentiable once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from rl.modules.recurrent._kernels import Resets

_library = torch.library.Library("rl_modules", "FRAGMENT")


def define(
    schema: str,
    run: Callable[..., Any],
    fake: Callable[..., Any],
    gradient: Callable[..., Any] | None = None,
    setup: Callable[..., Any] | None = None,
) -> Any:
    """Register an operator for all devices, with its fake kernel and its gradient, and return its overload.

    Args:
        schema: ``"name(arguments) -> results"``.
        run: implementation.
        fake: returns empty results.
        gradient: backward function; without one, a derivative raises.
        setup: saves the tensors of the backward pass.
    """
    name = schema.partition("(")[0]
    _library.define(schema)
    _library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"rl_modules::{name}", fake, lib=_library)
    torch.library.register_autograd(f"rl_modules::{name}", gradient or _once, setup_context=setup, lib=_library)
    return getattr(torch.ops.rl_modules, name).default


def flat(sequence: Tensor) -> Tensor:
    """Return a sequence ``[B, T, n]`` as ``[B * T, n]``."""
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
    """Return an empty tensor of the dtype and device of another: operators cannot return None."""
    return like.new_empty(0)


def _once(*_: Any) -> NoReturn:
    raise RuntimeError(
        "the recurrent back end 'scan' differentiates once: for gradients of gradients run the recurrence step by step"
    )
