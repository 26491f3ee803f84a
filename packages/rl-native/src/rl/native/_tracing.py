"""Predicates about tracing: calls past PyTorch's operators are lost where operators are traced."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch.autograd import forward_ad

Result = TypeVar("Result")

_is_compiling = torch.compiler.is_compiling
# PyTorch has no public predicates for these.
_dispatch_modes = torch._C._len_torch_dispatch_stack  # noqa: SLF001
_is_transformed = torch._C._are_functorch_transforms_active  # noqa: SLF001
_is_recorded = torch._C._is_tracing  # noqa: SLF001


def is_traced() -> bool:
    """Return whether a compiler, a dispatch mode, `torch.func`, `torch.jit.trace` or forward-mode AD is active.

    Example:
        >>> is_traced()
        False
    """
    return _is_compiling() or _dispatch_modes() > 0 or _is_transformed() or _is_recorded() or is_dual()


def is_dual() -> bool:
    """Return whether forward-mode AD is active. Not to be called while `torch.compile` traces.

    Example:
        >>> is_dual()
        False
    """
    return forward_ad._current_level >= 0  # noqa: SLF001 - PyTorch has no public predicate


def is_transformed() -> bool:
    """Return whether a transform of `torch.func` is active outside of the compiler, which traces transforms itself.

    Example:
        >>> is_transformed(), torch.vmap(lambda x: x + is_transformed())(torch.zeros(1))
        (False, tensor([1.]))
    """
    return not _is_compiling() and _is_transformed()


def away(make: Callable[[], Result]) -> Result:
    """Return the result of `make` in a new thread, for memory that outlives the call.

    Inference mode, transforms and dispatch modes are local to a thread: a tensor created inside of them could be
    read-only, valid only inside, or without memory.

    Example:
        >>> with torch.inference_mode():
        ...     away(lambda: torch.zeros(3)).is_inference()
        False
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(make).result()
