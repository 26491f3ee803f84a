"""Whether somebody looks at the operators that run."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch.autograd import forward_ad

__all__ = ["LEVEL", "WATCHED", "away", "is_dual", "is_traced", "is_transformed"]

Result = TypeVar("Result")

_is_compiling = torch.compiler.is_compiling
# There is no public way to ask these.
_dispatch_modes = torch._C._len_torch_dispatch_stack  # noqa: SLF001
_is_transformed = torch._C._are_functorch_transforms_active  # noqa: SLF001
_is_recorded = torch._C._is_tracing  # noqa: SLF001

WATCHED = (_dispatch_modes, _is_transformed, _is_recorded)
"""What C asks, see ``rl_watched`` in `csrc/python.c`, and the compiler cannot."""

LEVEL = (vars(forward_ad), "_current_level")
"""Where it finds whether derivatives travel forward."""


def is_traced() -> bool:
    """Whether somebody looks at the operators that run, so that calls past them would be lost.

    Example:
        >>> is_traced()
        False
    """
    if _is_compiling() or _dispatch_modes() or _is_transformed() or _is_recorded():
        return True
    return forward_ad._current_level >= 0  # noqa: SLF001 - as `is_dual`; a call more would be a fifth of all this takes


def is_dual() -> bool:
    """Whether derivatives may travel with the numbers, forward; calls past PyTorch's operators would lose them.

    Not to be asked while `torch.compile` traces.

    Example:
        >>> is_dual()
        False
    """
    return forward_ad._current_level >= 0  # noqa: SLF001 - there is no public way to ask


def is_transformed() -> bool:
    """Whether a transform of `torch.func` runs what is called here, and not the compiler, which knows them itself.

    Example:
        >>> is_transformed(), torch.vmap(lambda x: x + is_transformed())(torch.zeros(1))
        (False, tensor([1.]))
    """
    return not _is_compiling() and _is_transformed()


def away(make: Callable[[], Result]) -> Result:
    """What `make` gives in a new thread, for memory that is to last.

    That thread knows nothing of inference, transforms and tracers that this one may be inside of. They would make a
    tensor that cannot be written later, lasts as long as they do, or has no memory.

    Example:
        >>> with torch.inference_mode():
        ...     away(lambda: torch.zeros(3)).is_inference()
        False
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(make).result()
