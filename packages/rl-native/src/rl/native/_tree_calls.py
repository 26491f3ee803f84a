"""The C functions of the tree on tensors: what each needs of its arguments is checked by the caller."""

from __future__ import annotations

from ctypes import CDLL, c_double, c_int, c_int64, c_void_p
from functools import cache
from typing import NoReturn

import torch
from torch import Tensor

from rl.core.errors import CheckpointError, SpecError
from rl.native._library import require

__all__ = ["BITS", "buffer_size", "functions", "leaves_at", "refuse"]

BITS = {torch.float32: 32, torch.float64: 64}
_INDEX, _PRIORITY, _EMPTY, _OVERFLOW, _UNIFORM = 1, 2, 3, 4, 5

_SIGNATURES = {
    "rl_tree_bytes": (c_int64, [c_int64, c_int64]),
    "rl_tree_leaves_at": (c_int64, [c_int64, c_int64]),
    "rl_tree_init": (c_int, [c_void_p, c_int64, c_int64]),
    "rl_tree_open": (c_int, [c_void_p, c_int64, c_void_p, c_void_p]),
    "rl_tree_set": (c_int64, [c_void_p, c_void_p, c_void_p, c_int64, c_int64]),
    "rl_tree_set_errors": (c_int64, [c_void_p, c_void_p, c_void_p, c_int64, c_double, c_double]),
    "rl_tree_sample": (
        c_int64,
        [c_void_p, c_int64, c_void_p, c_void_p, c_int, c_double, c_void_p, c_void_p, c_void_p],
    ),
    "rl_tree_get": (c_int64, [c_void_p, c_void_p, c_void_p, c_int64]),
    "rl_tree_rebuild": (c_int64, [c_void_p]),
}


@cache
def functions() -> CDLL:
    """The library, its functions declared.

    Raises:
        RLError: if there is none.
    """
    library = require()
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def buffer_size(capacity: int, dtype: torch.dtype) -> int:
    """Bytes of a tree.

    Raises:
        SpecError: if there cannot be one.
    """
    if dtype not in BITS:
        raise SpecError(f"NativePriorityTree: the dtype is {dtype}; it is torch.float32 or torch.float64")
    size = functions().rl_tree_bytes(capacity, BITS[dtype]) if capacity >= 1 else -1
    if size < 0:
        raise SpecError(f"NativePriorityTree: the capacity is {capacity}; it is at least 1 and at most 2^46")
    return size


def leaves_at(capacity: int, dtype: torch.dtype) -> int:
    """Where in the buffer the leaves begin, in bytes."""
    return functions().rl_tree_leaves_at(capacity, BITS[dtype])


def refuse(status: int, *, capacity: int, index: Tensor | None = None, value: Tensor | None = None) -> NoReturn:
    """Raise what the status of a C function means."""
    where, code = status >> 8, status & 255
    place = f" (the one at place {where} of the batch)"
    if code == _INDEX and index is not None:
        raise IndexError(f"priority tree: index {index.flatten()[where].item()} is outside [0, {capacity}){place}")
    if code == _PRIORITY:
        came = "" if value is None else f" of {value.flatten()[where if value.numel() > 1 else 0].item()}"
        raise SpecError(
            f"priority tree: a priority{came} is refused{place}; it is to be at least 0, and finite in the tree's dtype"
        )
    if code == _EMPTY:
        raise SpecError("priority tree: nothing can be drawn, all priorities are zero; update some first")
    if code == _OVERFLOW:
        raise SpecError("priority tree: the sum of the priorities is infinite; scale them down")
    if code == _UNIFORM:
        came = "" if value is None else f" of {value.flatten()[where].item()}"
        raise SpecError(f"priority tree: a u{came} is outside [0, 1){place}")
    raise CheckpointError("priority tree: the buffer holds no tree, or was damaged")
