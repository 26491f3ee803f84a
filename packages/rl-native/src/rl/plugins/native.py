"""Plugin declarations of rl-native: components and hooks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rl.core.component import Component
from rl.core.hookspecs import hookimpl

if TYPE_CHECKING:
    import torch

    from rl.core.interfaces import LinearRecurrence, LoweredModule, PriorityTree, RecurrentBackend, RowGather
    from rl.core.policy_program import PolicyProgram


@hookimpl
def rl_components() -> Iterator[Component]:
    """Declare the priority tree."""
    yield Component(
        kind="tree_backend",
        name="native",
        target="rl.native:NativePriorityTree",
        summary="Priority tree in C, for the CPU.",
    )


@hookimpl
def rl_priority_tree(capacity: int, device: torch.device, dtype: torch.dtype) -> PriorityTree | None:
    """Priority tree in C for float32 and float64 on the CPU; None without the library."""
    if device.type != "cpu":
        return None
    from rl.native._library import library

    if library() is None:
        return None
    from rl.native._priority_arguments import BITS

    if dtype not in BITS:
        return None
    from rl.native._priority_tree import NativePriorityTree

    return NativePriorityTree(capacity, dtype=dtype)


@hookimpl
def rl_linear_recurrence(device: torch.device, dtype: torch.dtype) -> LinearRecurrence | None:
    """Linear recurrence in C for float32 and float64 on the CPU; None without the library, with one warning."""
    if device.type != "cpu":
        return None
    from rl.native._return_kernels import BITS

    if dtype not in BITS:
        return None
    from rl.native._library import library, warn_absent

    if library() is None:
        warn_absent("returns are computed")
        return None
    from rl.native._returns import NativeRecurrence

    return NativeRecurrence()


@hookimpl
def rl_recurrent_backend(cell: str, name: str | None, device: torch.device) -> RecurrentBackend | None:
    """Return the back end ``scan`` of rl-modules with time loops in C, on the CPU; None without either."""
    if cell not in ("lstm", "gru") or name not in ("scan", None) or device.type != "cpu":
        return None
    from rl.native._library import library

    if library() is None:
        return None
    from rl.core import load
    from rl.core.errors import UnknownComponentError

    try:
        scan = load("recurrent_backend", "scan")
    except UnknownComponentError:
        return None
    from rl.native._recurrent import NativeKernels

    return scan(kernels=NativeKernels())


@hookimpl
def rl_row_gather(tensors: Sequence[torch.Tensor]) -> RowGather | None:
    """Row gather in C for tensors on the CPU whose rows are contiguous; None without the library."""
    from rl.native._library import library

    if library() is None:
        return None
    from rl.native._rows import NativeRowGather

    return NativeRowGather(tensors) if NativeRowGather.takes(tensors) else None


@hookimpl
def rl_policy_step(
    program: PolicyProgram, plain: LoweredModule, name: str, device: torch.device
) -> LoweredModule | None:
    """Return the steps of a policy in C, on the CPU; without the library, reject it with the reason."""
    if name != "native" or device.type != "cpu":
        return None
    from rl.native._library import library, why_not

    if library() is None:
        from rl.core.errors import BackendError

        raise BackendError(why_not())
    from rl.native._policy import NativePolicy

    return NativePolicy(program, plain)


@hookimpl
def rl_notes() -> list[str]:
    """Report why there is no library."""
    from rl.native._library import why_not

    reason = why_not()
    return [reason] if reason else []
