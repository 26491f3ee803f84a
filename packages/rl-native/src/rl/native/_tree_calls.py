"""The C functions of the tree on tensors: what each needs of its arguments is checked by the caller."""

from __future__ import annotations

import operator
import threading
from ctypes import CDLL, c_char_p, c_int, c_int64, c_void_p
from functools import cache
from struct import Struct
from typing import Any, NoReturn, cast

import torch
from torch import Tensor

from rl.core.errors import CheckpointError, ShapeError, SpecError
from rl.native._library import require
from rl.native._traced import away

__all__ = [
    "BITS",
    "UNUSUAL",
    "as_uniforms",
    "as_values",
    "buffer_size",
    "check_apart_traced",
    "check_index",
    "check_leaves",
    "check_target",
    "check_values",
    "draws_of",
    "functions",
    "leaves_at",
    "pack_draws",
    "pack_errors",
    "refuse",
    "rows_of",
    "scratch",
    "whole",
]

BITS = {torch.float32: 32, torch.float64: 64}
UNUSUAL = -1
"""What C answers, see `csrc/tree_python.c`, if an argument is not what it mostly is; nothing was done then."""

_INDEX, _PRIORITY, _EMPTY, _OVERFLOW, _UNIFORM, _SHARED, _NOWHERE = 1, 2, 3, 4, 5, 7, 8
_PARTS = ("the tree", "raw", "largest", "the indices", "the values")  # of a call, as tree.h counts them

# Structs of tree.h. To pack one and give it takes half of the time that ctypes needs for so many arguments.
pack_errors = Struct("=5q2d3q").pack
"""tree, index, error, n, step, eps, alpha, rows, raw, largest; pointers as numbers, 0 for none."""
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


class _Scratch(threading.local):
    """Room for a seed, one for each thread: to allocate it costs as much as some draws."""

    def __init__(self) -> None:
        seed = away(lambda: torch.empty((), dtype=torch.int64, device="cpu"))
        # What makes indices, on the CPU whatever the default device is; what draws the seed; the seed.
        self.parts = seed.new_empty, seed.random_, seed


scratch = _Scratch()


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


def whole(value: Any) -> int:
    """`value` as an int; -1 if it is no whole number, which nothing here is.

    Example:
        >>> whole(3), whole(2.5), whole("3")
        (3, -1, -1)
    """
    try:
        return operator.index(value)
    except TypeError:
        return -1


def buffer_size(capacity: int, dtype: torch.dtype) -> int:
    """Bytes of a tree.

    Raises:
        SpecError: if there cannot be one.
    """
    if dtype not in BITS:
        raise SpecError(f"NativePriorityTree: the dtype is {dtype}; it is torch.float32 or torch.float64")
    leaves = whole(capacity)
    size = functions().rl_tree_bytes(leaves, BITS[dtype]) if 1 <= leaves < 2**62 else -1
    if size < 0:
        raise SpecError(
            f"NativePriorityTree: the capacity is {capacity!r}; it is a whole number of at least 1 and at most 2^46"
        )
    return size


def leaves_at(capacity: int, dtype: torch.dtype) -> int:
    """Where in the buffer the leaves begin, in bytes."""
    return functions().rl_tree_leaves_at(capacity, BITS[dtype])


def check_index(what: str, index: Tensor) -> None:
    """Refuse indices that C would read as something else.

    Raises:
        SpecError: if it is no int64 tensor on the CPU.
    """
    if isinstance(index, Tensor) and index.dtype is torch.int64 and index.is_cpu:
        return
    raise SpecError(f"NativePriorityTree.{what}: indices are a tensor of torch.int64 on the CPU, got {_came(index)}")


def check_values(what: str, index: Tensor, value: Tensor) -> None:
    """Refuse values that do not fit the indices.

    Raises:
        SpecError: if it is no tensor on the CPU.
        ShapeError: if there is neither one for each index nor a single one.
    """
    if not isinstance(value, Tensor) or not value.is_cpu:
        raise SpecError(f"NativePriorityTree.{what}: values are a tensor on the CPU, got {_came(value)}")
    if index.shape != value.shape and value.dim():
        raise ShapeError(
            f"NativePriorityTree.{what}: {tuple(value.shape)} values for {tuple(index.shape)} indices; give one"
            " value for each index, or a single one without dimensions"
        )


def as_values(what: str, value: Tensor, dtype: torch.dtype) -> Tensor:
    """Values in the dtype of the tree.

    Raises:
        SpecError: if they are no real numbers.
    """
    if value.is_complex():
        raise SpecError(f"NativePriorityTree.{what}: values are real numbers, got {value.dtype}; give their sizes")
    return value.to(dtype)


def as_uniforms(u: Tensor, n: int) -> Tensor:
    """What C reads as randomness.

    Raises:
        SpecError: if it is no tensor.
        ShapeError: if it is not ``[n]`` on the CPU.
    """
    if not isinstance(u, Tensor):
        raise SpecError(f"NativePriorityTree.sample: u is a {type(u).__name__}; it is a tensor ({n},)")
    if u.shape != (n,) or not u.is_cpu:
        raise ShapeError(f"NativePriorityTree.sample: u is {tuple(u.shape)} on {u.device}; it is ({n},) on the CPU")
    if u.is_complex():
        raise SpecError(f"NativePriorityTree.sample: u is of {u.dtype}; it is of real numbers in [0, 1)")
    return u.to(torch.float64).contiguous().resolve_neg()


def rows_of(rows: Any, capacity: int) -> int:
    """What an index must be below: `rows`, or the capacity if that is None or more.

    Raises:
        SpecError: if it is no whole number of at least 0.
    """
    found = capacity if rows is None else _number(rows)
    if found < 0:
        raise SpecError(
            f"NativePriorityTree.update_from_errors: rows is {rows!r}; it is a whole number of at least 0, or None"
        )
    return min(found, capacity)


def draws_of(n: Any) -> int:
    """How many are to be drawn.

    Raises:
        SpecError: if it is no whole number of at least 0.
    """
    found = _number(n)
    if found < 0:
        raise SpecError(f"NativePriorityTree.sample: {n!r} draws are asked for; it is a whole number of at least 0")
    return found


def _number(value: Any) -> int:
    """As `whole`, and as it is if it is one of the compiler's."""
    return cast("int", value) if isinstance(value, int | torch.SymInt) else whole(value)


def check_leaves(leaves: Any, capacity: int, dtype: torch.dtype) -> Tensor:
    """The leaves of a state, as they are.

    Raises:
        CheckpointError: if they do not fit a tree, or are no priorities.
    """
    if not isinstance(leaves, Tensor) or leaves.shape != (capacity,) or leaves.dtype != dtype:
        came = f"{tuple(leaves.shape)} of {leaves.dtype}" if isinstance(leaves, Tensor) else type(leaves).__name__
        raise CheckpointError(
            f"NativePriorityTree: the state holds {came} as priority; this tree takes ({capacity},) of {dtype}"
        )
    if not bool((leaves >= 0).all() and leaves.isfinite().all()):
        raise CheckpointError("NativePriorityTree: the state holds priorities that are negative or not finite")
    return leaves


def _came(value: Any) -> str:
    return f"one of {value.dtype} on {value.device}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def check_target(name: str, target: Tensor, dtype: torch.dtype, size: int | None) -> None:
    """Refuse a tensor that C cannot write into.

    Raises:
        SpecError: if it is not contiguous, of this dtype, and of ``[size]``, or ``[]`` if there is none, on the CPU.
    """
    if not isinstance(target, Tensor):
        raise SpecError(f"NativePriorityTree.update_from_errors: {name} is a tensor, got {_came(target)}")
    if (
        target.dtype is dtype
        and target.is_cpu
        and (target.dim() == 0 if size is None else target.dim() == 1 and target.numel() == size)
        and target.is_contiguous()
    ):
        return
    shape = () if size is None else (size,)
    raise SpecError(
        f"NativePriorityTree.update_from_errors: {name} is {tuple(target.shape)} of {target.dtype} on {target.device};"
        f" it is to be {shape}, contiguous, of {dtype} on the CPU"
    )


def check_apart_traced(
    buffer: Tensor, index: Tensor, value: Tensor, raw: Tensor | None = None, largest: Tensor | None = None
) -> None:
    """Refuse what C refuses, while a graph is traced: tensors have no addresses then, but storages and places there.

    Raises:
        SpecError: if one that would be written shares memory with another.
    """
    parts = (buffer, raw, largest, index, value)
    for i, written in enumerate(parts[:3]):
        for j, other in enumerate(parts[i + 1 :], i + 1):
            if written is not None and other is not None and _overlap(written, other):
                _refuse_shared(8 * i + j)


def _overlap(one: Tensor, other: Tensor) -> bool:
    """Of tensors without addresses; not if one is not dense, because C is given a copy of it."""
    same = one.untyped_storage()._cdata == other.untyped_storage()._cdata  # noqa: SLF001  its only name without memory
    if not same or not one.is_contiguous() or not other.is_contiguous():
        return False
    first, second = (each.storage_offset() * each.element_size() for each in (one, other))
    return bool(first < second + other.nbytes and second < first + one.nbytes)


def _refuse_shared(place: int) -> NoReturn:
    raise SpecError(
        f"priority tree: {_PARTS[place & 7]} and {_PARTS[place >> 3]} share memory, and a call must not read what it"
        " writes; give a clone of one of them; nothing was written"
    )


def refuse(
    status: int,
    *,
    capacity: int,
    index: Tensor | None = None,
    value: Tensor | None = None,
    power: tuple[float, float] | None = None,
) -> NoReturn:
    """Raise what the status of a C function means.

    Args:
        status: a code, plus 256 times the place in the batch.
        capacity: number of leaves that an index may reach.
        index: the indices of the batch.
        value: its priorities, or errors, or uniforms.
        power: eps and alpha, if they are errors.
    """
    where, code = status >> 8, status & 255
    place = f" (the one at place {where} of the batch)"
    if code == _INDEX and index is not None:
        raise IndexError(
            f"priority tree: index {index.flatten()[where].item()} is outside [0, {capacity}){place};"
            " nothing was written"
        )
    if code == _PRIORITY:
        _refuse_priority(None if value is None else value.flatten()[where if value.numel() > 1 else 0], power, place)
    if code == _EMPTY:
        raise SpecError("priority tree: nothing can be drawn, all priorities are zero; update some first")
    if code == _OVERFLOW:
        raise SpecError("priority tree: the sum of the priorities is infinite; scale them down")
    if code == _UNIFORM:
        came = "" if value is None else f" of {value.flatten()[where].item()}"
        raise SpecError(f"priority tree: a u{came} is outside [0, 1){place}")
    if code == _SHARED:
        _refuse_shared(where)
    if code == _NOWHERE:
        raise SpecError(
            "priority tree: a tensor has no memory: a tracer made it up (torch.func.functionalize, FakeTensorMode), or"
            " its storage was given back; call this outside of the tracer, with tensors that hold numbers; nothing was"
            " written"
        )
    raise CheckpointError("priority tree: the buffer holds no priority tree, or was damaged")


def _refuse_priority(value: Tensor | None, power: tuple[float, float] | None, place: str) -> NoReturn:
    if value is not None and power is not None and value.isfinite():
        eps, alpha = power
        raise SpecError(
            f"priority tree: the error {value.item()} makes the priority (|error| + {eps}) ** {alpha}, which is"
            f" infinite in {value.dtype}{place}; nothing was written"
        )
    came = "" if value is None else f" of {value.item()}"
    raise SpecError(
        f"priority tree: a priority{came} is refused{place}; it is to be at least 0, and finite in the tree's dtype;"
        " nothing was written"
    )
