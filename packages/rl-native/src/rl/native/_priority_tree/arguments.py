"""Argument checks of the priority tree: C trusts addresses, so every tensor is checked before its address is taken."""

from __future__ import annotations

from operator import index as as_int
from typing import Any, cast

import torch
from torch import Tensor

from rl.core.errors import CheckpointError, ShapeError, SpecError
from rl.native._priority_tree.calls import raise_shared

__all__ = [
    "check_apart_traced",
    "check_beta",
    "check_index",
    "check_leaves",
    "check_number",
    "check_power",
    "check_target",
    "prepare_batch",
    "prepare_uniforms",
]

_INF = float("inf")


def _described(value: Any) -> str:
    return f"one of {value.dtype} on {value.device}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def check_index(operation: str, index: Tensor) -> None:
    """Require an int64 tensor on the CPU.

    Raises:
        SpecError: if it is anything else.
    """
    if isinstance(index, Tensor) and index.dtype is torch.int64 and index.is_cpu:
        return
    raise SpecError(
        f"NativePriorityTree.{operation}: indices are a tensor of torch.int64 on the CPU, got {_described(index)}"
    )


def prepare_batch(operation: str, index: Tensor, value: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Indices and values, contiguous and in the dtype of the tree.

    Raises:
        SpecError: if either is not a tensor of real numbers on the CPU, or the indices are not int64.
        ShapeError: if there is neither one value for each index nor a single one.
    """
    check_index(operation, index)
    if not isinstance(value, Tensor) or not value.is_cpu:
        raise SpecError(f"NativePriorityTree.{operation}: values are a tensor on the CPU, got {_described(value)}")
    if index.shape != value.shape and value.dim():
        raise ShapeError(
            f"NativePriorityTree.{operation}: {tuple(value.shape)} values for {tuple(index.shape)} indices; give one"
            " value for each index, or a single one without dimensions"
        )
    if value.dtype is not dtype:
        if value.is_complex():
            raise SpecError(
                f"NativePriorityTree.{operation}: values are real numbers, got {value.dtype}; give their sizes"
            )
        value = value.to(dtype)
    if value.is_neg():
        value = value.resolve_neg()
    return index.contiguous(), value.contiguous()


def prepare_uniforms(u: Tensor, n: int) -> Tensor:
    """Uniform numbers ``[n]`` as contiguous float64.

    Raises:
        SpecError: if `u` is not a tensor of real numbers.
        ShapeError: if it is not ``[n]`` on the CPU.
    """
    if not isinstance(u, Tensor):
        raise SpecError(f"NativePriorityTree.sample: u is a {type(u).__name__}; it is a tensor ({n},)")
    if u.shape != (n,) or not u.is_cpu:
        raise ShapeError(f"NativePriorityTree.sample: u is {tuple(u.shape)} on {u.device}; it is ({n},) on the CPU")
    if u.is_complex():
        raise SpecError(f"NativePriorityTree.sample: u is of {u.dtype}; it is of real numbers in [0, 1)")
    return u.to(torch.float64).contiguous().resolve_neg()


def check_number(name: str, value: Any) -> int:
    """A nonnegative integer, which may be symbolic.

    Raises:
        SpecError: if it is anything else.
    """
    try:
        found = cast("int", value) if isinstance(value, int | torch.SymInt) else as_int(value)
    except TypeError:
        found = -1
    if found < 0:
        raise SpecError(f"NativePriorityTree.{name} is {value!r}; it is an integer of at least 0")
    return found


def check_power(eps: float, alpha: float) -> None:
    """Require finite `eps` and `alpha` of at least 0.

    Raises:
        SpecError: if either is not.
    """
    if not (0 <= eps < _INF and 0 <= alpha < _INF):
        raise SpecError(f"NativePriorityTree: eps and alpha are finite and at least 0; they are {eps} and {alpha}")


def check_beta(beta: float) -> None:
    """Require a finite `beta` of at least 0.

    Raises:
        SpecError: if it is not.
    """
    if not 0 <= beta < _INF:
        raise SpecError(f"NativePriorityTree: beta is finite and at least 0; it is {beta}")


def check_leaves(leaves: Any, capacity: int, dtype: torch.dtype) -> Tensor:
    """The leaves of a state.

    Raises:
        CheckpointError: if their shape or dtype differs from the tree's, or they are not valid priorities.
    """
    if not isinstance(leaves, Tensor) or leaves.shape != (capacity,) or leaves.dtype != dtype:
        came = f"{tuple(leaves.shape)} of {leaves.dtype}" if isinstance(leaves, Tensor) else type(leaves).__name__
        raise CheckpointError(
            f"NativePriorityTree: the state holds {came} as priority; this tree takes ({capacity},) of {dtype}"
        )
    if not bool((leaves >= 0).all() and leaves.isfinite().all()):
        raise CheckpointError("NativePriorityTree: the state holds priorities that are negative or not finite")
    return leaves


def check_target(name: str, target: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Require a contiguous tensor on the CPU that C can write.

    Raises:
        SpecError: if its shape, dtype, device or strides differ.
    """
    if not isinstance(target, Tensor):
        raise SpecError(f"NativePriorityTree.update_from_errors: {name} is a tensor, got {_described(target)}")
    if target.dtype is dtype and target.shape == shape and target.is_cpu and target.is_contiguous():
        if not target.data_ptr():
            raise SpecError(
                f"NativePriorityTree.update_from_errors: {name} has no memory, because its storage was freed; give"
                " another tensor"
            )
        return
    raise SpecError(
        f"NativePriorityTree.update_from_errors: {name} is {tuple(target.shape)} of {target.dtype} on {target.device};"
        f" it must be {shape}, contiguous, of {dtype} on the CPU"
    )


def check_apart_traced(
    buffer: Tensor, index: Tensor, value: Tensor, raw: Tensor | None = None, largest: Tensor | None = None
) -> None:
    """Require, while a graph is traced, that no written tensor shares memory with another argument.

    Traced tensors have no addresses; their storages and offsets are compared.

    Raises:
        SpecError: if one that would be written shares memory with another.
    """
    parts = (buffer, raw, largest, index, value)
    for i, written in enumerate(parts[:3]):
        for j, other in enumerate(parts[i + 1 :], i + 1):
            if written is not None and other is not None and _overlap(written, other):
                raise_shared(8 * i + j)


def _overlap(one: Tensor, other: Tensor) -> bool:
    """Whether two traced tensors share memory; one that is not contiguous is copied before C reads it."""
    same = one.untyped_storage()._cdata == other.untyped_storage()._cdata  # noqa: SLF001  its only identity here
    if not same or not one.is_contiguous() or not other.is_contiguous():
        return False
    first, second = (each.storage_offset() * each.element_size() for each in (one, other))
    return bool(first < second + other.nbytes and second < first + one.nbytes)
