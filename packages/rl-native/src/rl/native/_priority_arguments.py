"""Memory of a tree: aligned zeros in the process, or a mapped file."""

from __future__ import annotations

import mmap
import operator
import os
import secrets
from contextlib import suppress
from ctypes import CDLL, byref, c_char_p, c_int, c_int64, c_void_p
from functools import cache
from operator import index as as_int
from pathlib import Path
from struct import Struct
from typing import Any, NoReturn, cast

import numpy as np
import torch
from torch import Tensor

from rl.core.errors import ArgumentError, CheckpointError, ShapeError
from rl.native._library import require

ALIGN = 64
"""Alignment of a buffer in bytes: a cache line."""

_HUGE = 2**21  # bytes of a large page on most processors


def zeros(size: int) -> Tensor:
    """Create a zeroed buffer whose untouched pages take no memory.

    Raises:
        ArgumentError: If there is not enough memory.

    Example:
        >>> buffer = zeros(1000)
        >>> buffer.shape, buffer.data_ptr() % ALIGN
        (torch.Size([1000]), 0)
    """
    try:
        room = _large(size + _HUGE) if size >= _HUGE else np.zeros(size + ALIGN, np.uint8)
    except (MemoryError, OSError, OverflowError) as error:
        raise ArgumentError(
            f"NativePriorityTree: the leaves take {size / 1e12:.4g} TB, which this machine does not have; set the"
            " capacity to the number of stored rows"
        ) from error
    start = -room.ctypes.data % (_HUGE if size >= _HUGE else ALIGN)
    return torch.from_numpy(room[start : start + size])


def _large(size: int) -> Any:
    """Zeros in huge pages, where the system has them: random access needs fewer address translations."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.zeros(size, np.uint8)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without them
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8)


def save(buffer: Tensor, path: Path) -> None:
    """Write a buffer to a file; an existing file is replaced when the new one is complete."""
    path = path.resolve()
    beside = path.with_name(f"{path.name}.{secrets.token_hex(6)}")
    try:
        with beside.open("xb") as file:
            buffer.numpy().tofile(file)
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def map_file(path: Path, size: int | None) -> Tensor:
    """Map a buffer in a file: a new one of `size` zero bytes, or the content of an existing file.

    Raises:
        CheckpointError: If the file is missing, or exists already.
    """
    if size is not None:
        try:
            with path.open("xb") as file:
                file.truncate(size)
        except FileExistsError as error:
            raise CheckpointError(f"{path} exists; leave out the capacity to open it") from error
    elif not path.is_file():
        raise CheckpointError(f"{path} is no file; pass a capacity to create a new tree there")
    return torch.from_file(str(path), shared=True, size=path.stat().st_size, dtype=torch.uint8)


def file_id(path: Path) -> tuple[int, int] | None:
    """Device and inode of a file; None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


BITS = {torch.float32: 32, torch.float64: 64}
_DTYPES = {bits: dtype for dtype, bits in BITS.items()}

_INDEX, _PRIORITY, _EMPTY, _OVERFLOW, _UNIFORM, _SHARED, _NOWHERE = 1, 2, 3, 4, 5, 7, 8
_PARTS = ("the tree", "raw", "largest", "the indices", "the values")  # numbered as in tree.h

# Structs of tree.h: packing one takes half the time that ctypes needs for ten arguments.
pack_errors = Struct("=5q2d3q").pack
"""tree, index, error, n, step, eps, alpha, rows, raw, largest; pointers are integers, 0 for none."""
pack_draws = Struct("=5qd3q").pack
"""tree, n, seed, u, stratified, beta, index, priority, weight."""

_SIGNATURES = {
    "rl_tree_bytes": (c_int64, [c_int64, c_int64]),
    "rl_tree_leaves_at": (c_int64, [c_int64, c_int64]),
    "rl_tree_init": (c_int, [c_void_p, c_int64, c_int64]),
    "rl_tree_open": (c_int, [c_void_p, c_int64, c_void_p, c_void_p]),
    "rl_tree_set": (c_int64, [c_void_p, c_void_p, c_void_p, c_int64, c_int64]),
    "rl_tree_set_errors": (c_int64, [c_char_p]),
    "rl_tree_sample": (c_int64, [c_char_p]),
    "rl_tree_get": (c_int64, [c_void_p, c_void_p, c_void_p, c_int64]),
    "rl_tree_rebuild": (c_int64, [c_void_p]),
}


@cache
def functions() -> CDLL:
    """Return the library, with the signatures of the tree's functions.

    Raises:
        RLError: If there is none.
    """
    library = require()
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def buffer_size(capacity: Any, dtype: torch.dtype) -> int:
    """Bytes of a tree.

    Raises:
        ArgumentError: If there cannot be one.
    """
    if dtype not in BITS:
        raise ArgumentError(f"NativePriorityTree: the dtype is {dtype}; it must be torch.float32 or torch.float64")
    try:
        leaves = operator.index(capacity)
    except TypeError:
        leaves = -1
    size = functions().rl_tree_bytes(leaves, BITS[dtype]) if 1 <= leaves < 2**62 else -1
    if size < 0:
        raise ArgumentError(
            f"NativePriorityTree: the capacity is {capacity!r}; it must be an integer of at least 1 and at most 2^46"
        )
    return size


def open_tree(buffer: Tensor) -> tuple[int, torch.dtype]:
    """Capacity and dtype of the tree in a buffer.

    Raises:
        CheckpointError: If it holds no tree.
        ArgumentError: If it is not contiguous uint8 on the CPU, at a multiple of 64 bytes.
    """
    if buffer.dtype != torch.uint8 or not buffer.is_cpu or not buffer.is_contiguous():
        raise ArgumentError(
            f"NativePriorityTree: a buffer is contiguous uint8 on the CPU; this one is {buffer.dtype} on"
            f" {buffer.device}"
        )
    if buffer.data_ptr() % ALIGN:
        raise ArgumentError("NativePriorityTree: a buffer begins at a multiple of 64 bytes; pass a clone of this one")
    if buffer.numel() and (
        not buffer.data_ptr() or buffer.storage_offset() + buffer.numel() > buffer.untyped_storage().nbytes()
    ):
        raise ArgumentError("NativePriorityTree: the buffer has no memory: its storage was freed; build a new tree")
    capacity, bits = c_int64(), c_int64()
    if functions().rl_tree_open(buffer.data_ptr(), buffer.numel(), byref(capacity), byref(bits)):
        raise CheckpointError(f"NativePriorityTree: these {buffer.numel()} bytes hold no priority tree")
    return capacity.value, _DTYPES[bits.value]


def leaves_at(capacity: int, dtype: torch.dtype) -> int:
    """Offset of the leaves in the buffer, in bytes."""
    return functions().rl_tree_leaves_at(capacity, BITS[dtype])


def raise_shared(place: int) -> NoReturn:
    """Raise for two arguments that share memory.

    Args:
        place: 8 times the written argument, plus the other one, numbered as in tree.h.

    Raises:
        ArgumentError: Always.
    """
    raise ArgumentError(
        f"priority tree: {_PARTS[place & 7]} and {_PARTS[place >> 3]} share memory, and a call must not read what it"
        " writes; pass a clone of one of them; nothing was written"
    )


def raise_status(
    status: int,
    *,
    capacity: int,
    index: Tensor | None = None,
    value: Tensor | None = None,
    power: tuple[float, float] | None = None,
) -> NoReturn:
    """Raise the error that a C function reported.

    Args:
        status: Code, plus 256 times the position in the batch.
        capacity: Exclusive upper bound of an index.
        index: Indices of the batch.
        value: Priorities of the tree, TD errors, or uniform numbers.
        power: Pair of eps and alpha, if `value` holds TD errors.

    Raises:
        IndexError: If an index is out of bounds.
        ArgumentError: If a value is invalid, tensors share memory, or nothing can be sampled.
        CheckpointError: If the buffer holds no tree.
    """
    where, code = status >> 8, status & 255
    place = f" (the one at position {where} of the batch)"
    if code == _INDEX and index is not None:
        raise IndexError(
            f"priority tree: index {index.flatten()[where].item()} is outside [0, {capacity}){place};"
            " nothing was written"
        )
    if code == _PRIORITY:
        _raise_priority(None if value is None else value.flatten()[where if value.numel() > 1 else 0], power, place)
    if code == _EMPTY:
        raise ArgumentError("priority tree: nothing can be sampled, all priorities are zero; update some first")
    if code == _OVERFLOW:
        raise ArgumentError("priority tree: the sum of the priorities is infinite; scale them down")
    if code == _UNIFORM:
        came = "" if value is None else f" of {value.flatten()[where].item()}"
        raise ArgumentError(f"priority tree: a u{came} is outside [0, 1){place}")
    if code == _SHARED:
        raise_shared(where)
    if code == _NOWHERE:
        raise ArgumentError(
            "priority tree: a tensor has no memory (made by torch.func.functionalize or FakeTensorMode, or its storage"
            " was freed); call this outside of the tracer, with tensors that hold numbers; nothing was written"
        )
    raise CheckpointError("priority tree: the buffer holds no priority tree, or was damaged")


def _raise_priority(value: Tensor | None, power: tuple[float, float] | None, place: str) -> NoReturn:
    if value is not None and power is not None and value.isfinite():
        eps, alpha = power
        raise ArgumentError(
            f"priority tree: the error {value.item()} makes the priority (|error| + {eps}) ** {alpha}, which is"
            f" infinite in {value.dtype}{place}; nothing was written"
        )
    came = "" if value is None else f" of {value.item()}"
    raise ArgumentError(
        f"priority tree: a priority{came} is rejected{place}; it must be at least 0, and finite in the tree's dtype;"
        " nothing was written"
    )


_INF = float("inf")


def _described(value: Any) -> str:
    return f"one of {value.dtype} on {value.device}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def check_index(operation: str, index: Tensor) -> None:
    """Require an int64 tensor on the CPU.

    Raises:
        ArgumentError: If it is anything else.
    """
    if isinstance(index, Tensor) and index.dtype is torch.int64 and index.is_cpu:
        return
    raise ArgumentError(
        f"NativePriorityTree.{operation}: indices are a tensor of torch.int64 on the CPU, got {_described(index)}"
    )


def prepare_batch(operation: str, index: Tensor, value: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return indices and values, contiguous and in the dtype of the tree.

    Raises:
        ArgumentError: If either is not a tensor of real numbers on the CPU, or the indices are not int64.
        ShapeError: If there is neither one value for each index nor a single one.
    """
    check_index(operation, index)
    if not isinstance(value, Tensor) or not value.is_cpu:
        raise ArgumentError(f"NativePriorityTree.{operation}: values are a tensor on the CPU, got {_described(value)}")
    if index.shape != value.shape and value.dim():
        raise ShapeError(
            f"NativePriorityTree.{operation}: {tuple(value.shape)} values for {tuple(index.shape)} indices; pass one"
            " value for each index, or a single one without dimensions"
        )
    if value.dtype is not dtype:
        if value.is_complex():
            raise ArgumentError(
                f"NativePriorityTree.{operation}: values are real numbers, got {value.dtype}; pass their sizes"
            )
        value = value.to(dtype)
    if value.is_neg():
        value = value.resolve_neg()
    return index.contiguous(), value.contiguous()


def prepare_uniforms(u: Tensor, n: int) -> Tensor:
    """Uniform numbers ``[n]`` as contiguous float64.

    Raises:
        ArgumentError: If `u` is not a tensor of real numbers.
        ShapeError: If it is not ``[n]`` on the CPU.
    """
    if not isinstance(u, Tensor):
        raise ArgumentError(f"NativePriorityTree.sample: u is a {type(u).__name__}; it is a tensor ({n},)")
    if u.shape != (n,) or not u.is_cpu:
        raise ShapeError(f"NativePriorityTree.sample: u is {tuple(u.shape)} on {u.device}; it is ({n},) on the CPU")
    if u.is_complex():
        raise ArgumentError(f"NativePriorityTree.sample: u is of {u.dtype}; it is of real numbers in [0, 1)")
    return u.to(torch.float64).contiguous().resolve_neg()


def check_number(name: str, value: Any) -> int:
    """Return a nonnegative integer, which may be symbolic.

    Raises:
        ArgumentError: If it is anything else.
    """
    try:
        found = cast("int", value) if isinstance(value, int | torch.SymInt) else as_int(value)
    except TypeError:
        found = -1
    if found < 0:
        raise ArgumentError(f"NativePriorityTree.{name} is {value!r}; it is an integer of at least 0")
    return found


def check_power(eps: float, alpha: float) -> None:
    """Require finite `eps` and `alpha` of at least 0.

    Raises:
        ArgumentError: If either is not.
    """
    if not (0 <= eps < _INF and 0 <= alpha < _INF):
        raise ArgumentError(f"NativePriorityTree: eps and alpha are finite and at least 0; they are {eps} and {alpha}")


def check_beta(beta: float) -> None:
    """Require a finite `beta` of at least 0.

    Raises:
        ArgumentError: If it is not.
    """
    if not 0 <= beta < _INF:
        raise ArgumentError(f"NativePriorityTree: beta is finite and at least 0; it is {beta}")


def check_leaves(leaves: Any, capacity: int, dtype: torch.dtype) -> Tensor:
    """Return the leaves of a state.

    Raises:
        CheckpointError: If their shape or dtype differs from the tree's, or they are not valid priorities.
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
        ArgumentError: If its shape, dtype, device or strides differ.
    """
    if not isinstance(target, Tensor):
        raise ArgumentError(f"NativePriorityTree.update_from_errors: {name} is a tensor, got {_described(target)}")
    if target.dtype is dtype and target.shape == shape and target.is_cpu and target.is_contiguous():
        if not target.data_ptr():
            raise ArgumentError(
                f"NativePriorityTree.update_from_errors: {name} has no memory, because its storage was freed; pass"
                " another tensor"
            )
        return
    raise ArgumentError(
        f"NativePriorityTree.update_from_errors: {name} is {tuple(target.shape)} of {target.dtype} on {target.device};"
        f" it must be {shape}, contiguous, of {dtype} on the CPU"
    )


def check_apart_traced(
    buffer: Tensor, index: Tensor, value: Tensor, raw: Tensor | None = None, largest: Tensor | None = None
) -> None:
    """Require, while a graph is traced, that no written tensor shares memory with another argument.

    Traced tensors have no addresses; their storages and offsets are compared.

    Raises:
        ArgumentError: If one that would be written shares memory with another.
    """
    parts = (buffer, raw, largest, index, value)
    for i, written in enumerate(parts[:3]):
        for j, other in enumerate(parts[i + 1 :], i + 1):
            if written is not None and other is not None and _overlap(written, other):
                raise_shared(8 * i + j)


def _overlap(one: Tensor, other: Tensor) -> bool:
    """Return whether two traced tensors share memory; one that is not contiguous is copied before C reads it."""
    same = one.untyped_storage()._cdata == other.untyped_storage()._cdata  # noqa: SLF001  its only identity here
    if not same or not one.is_contiguous() or not other.is_contiguous():
        return False
    first, second = (each.storage_offset() * each.element_size() for each in (one, other))
    return bool(first < second + other.nbytes and second < first + one.nbytes)
