"""C functions of the priority tree: their signatures, and errors from their status codes."""

from __future__ import annotations

import operator
from ctypes import CDLL, byref, c_char_p, c_int, c_int64, c_void_p
from functools import cache
from struct import Struct
from typing import Any, NoReturn

import torch
from torch import Tensor

from rl.core.errors import CheckpointError, SpecError
from rl.native._library import require
from rl.native._priority_tree.memory import ALIGN

__all__ = [
    "BITS",
    "buffer_size",
    "functions",
    "leaves_at",
    "open_tree",
    "pack_draws",
    "pack_errors",
    "raise_shared",
    "raise_status",
]

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
    """The library, with the signatures of the tree's functions.

    Raises:
        RLError: if there is none.
    """
    library = require()
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def buffer_size(capacity: Any, dtype: torch.dtype) -> int:
    """Bytes of a tree.

    Raises:
        SpecError: if there cannot be one.
    """
    if dtype not in BITS:
        raise SpecError(f"NativePriorityTree: the dtype is {dtype}; it must be torch.float32 or torch.float64")
    try:
        leaves = operator.index(capacity)
    except TypeError:
        leaves = -1
    size = functions().rl_tree_bytes(leaves, BITS[dtype]) if 1 <= leaves < 2**62 else -1
    if size < 0:
        raise SpecError(
            f"NativePriorityTree: the capacity is {capacity!r}; it must be an integer of at least 1 and at most 2^46"
        )
    return size


def open_tree(buffer: Tensor) -> tuple[int, torch.dtype]:
    """Capacity and dtype of the tree in a buffer.

    Raises:
        CheckpointError: if it holds no tree.
        SpecError: if it is not contiguous uint8 on the CPU, at a multiple of 64 bytes.
    """
    if buffer.dtype != torch.uint8 or not buffer.is_cpu or not buffer.is_contiguous():
        raise SpecError(
            f"NativePriorityTree: a buffer is contiguous uint8 on the CPU; this one is {buffer.dtype} on"
            f" {buffer.device}"
        )
    if buffer.data_ptr() % ALIGN:
        raise SpecError("NativePriorityTree: a buffer begins at a multiple of 64 bytes; give a clone of this one")
    if buffer.numel() and (
        not buffer.data_ptr() or buffer.storage_offset() + buffer.numel() > buffer.untyped_storage().nbytes()
    ):
        raise SpecError("NativePriorityTree: the buffer has no memory, because its storage was freed; build a new tree")
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
        SpecError: always.
    """
    raise SpecError(
        f"priority tree: {_PARTS[place & 7]} and {_PARTS[place >> 3]} share memory, and a call must not read what it"
        " writes; give a clone of one of them; nothing was written"
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
        status: a code, plus 256 times the place in the batch.
        capacity: exclusive upper bound of an index.
        index: the indices of the batch.
        value: its priorities, TD errors, or uniform numbers.
        power: eps and alpha, if `value` holds TD errors.

    Raises:
        IndexError: if an index is out of bounds.
        SpecError: if a value is invalid, tensors share memory, or nothing can be sampled.
        CheckpointError: if the buffer holds no tree.
    """
    where, code = status >> 8, status & 255
    place = f" (the one at place {where} of the batch)"
    if code == _INDEX and index is not None:
        raise IndexError(
            f"priority tree: index {index.flatten()[where].item()} is outside [0, {capacity}){place};"
            " nothing was written"
        )
    if code == _PRIORITY:
        _raise_priority(None if value is None else value.flatten()[where if value.numel() > 1 else 0], power, place)
    if code == _EMPTY:
        raise SpecError("priority tree: nothing can be sampled, all priorities are zero; update some first")
    if code == _OVERFLOW:
        raise SpecError("priority tree: the sum of the priorities is infinite; scale them down")
    if code == _UNIFORM:
        came = "" if value is None else f" of {value.flatten()[where].item()}"
        raise SpecError(f"priority tree: a u{came} is outside [0, 1){place}")
    if code == _SHARED:
        raise_shared(where)
    if code == _NOWHERE:
        raise SpecError(
            "priority tree: a tensor has no memory (made by torch.func.functionalize or FakeTensorMode, or its storage"
            " was freed); call this outside of the tracer, with tensors that hold numbers; nothing was written"
        )
    raise CheckpointError("priority tree: the buffer holds no priority tree, or was damaged")


def _raise_priority(value: Tensor | None, power: tuple[float, float] | None, place: str) -> NoReturn:
    if value is not None and power is not None and value.isfinite():
        eps, alpha = power
        raise SpecError(
            f"priority tree: the error {value.item()} makes the priority (|error| + {eps}) ** {alpha}, which is"
            f" infinite in {value.dtype}{place}; nothing was written"
        )
    came = "" if value is None else f" of {value.item()}"
    raise SpecError(
        f"priority tree: a priority{came} is refused{place}; it must be at least 0, and finite in the tree's dtype;"
        " nothing was written"
    )
