"""The tree as operators of torch, so that a compiled graph holds it without a break.

Eager code calls C directly, which is faster. The operators are registered when this module is imported.
"""

from __future__ import annotations

from ctypes import byref, c_int64
from typing import cast

import torch
from torch import Tensor
from torch.library import Library, register_fake

from rl.core.errors import CheckpointError, SpecError
from rl.native._tree_calls import (
    BITS,
    check_apart_traced,
    check_index,
    check_target,
    check_values,
    functions,
    leaves_at,
    pack_draws,
    pack_errors,
    refuse,
)

__all__ = ["tree_get", "tree_rebuild", "tree_sample", "tree_set", "tree_set_errors"]

_LIBRARY = Library("rl_native", "FRAGMENT")
_LIBRARY.define("tree_set(Tensor(a!) buffer, Tensor index, Tensor priority) -> ()")
_LIBRARY.define(
    "tree_set_errors(Tensor(a!) buffer, Tensor index, Tensor error, float eps, float alpha, Tensor(b!)? raw,"
    " Tensor(c!)? largest, SymInt rows) -> ()"
)
_LIBRARY.define(
    "tree_sample(Tensor buffer, SymInt n, Tensor seed, Tensor? u, bool stratified, float? beta, ScalarType dtype)"
    " -> (Tensor, Tensor)"
)
_LIBRARY.define("tree_get(Tensor buffer, Tensor index, ScalarType dtype) -> Tensor")
_LIBRARY.define("tree_rebuild(Tensor(a!) buffer, ScalarType dtype) -> ()")


def _tree_of(buffer: Tensor, dtype: torch.dtype) -> int:
    """The capacity of the tree in `buffer`, of which C believes what its head says.

    Raises:
        CheckpointError: if it holds no tree.
        SpecError: if its leaves are of another dtype.
    """
    capacity, bits = c_int64(), c_int64()
    if functions().rl_tree_open(buffer.data_ptr(), buffer.numel(), byref(capacity), byref(bits)):
        raise CheckpointError(f"NativePriorityTree: these {buffer.numel()} bytes hold no priority tree")
    if BITS.get(dtype) != bits.value:
        raise SpecError(f"NativePriorityTree: values of {dtype} for a tree of {bits.value} bits")
    return capacity.value


def _set(buffer: Tensor, index: Tensor, priority: Tensor) -> None:
    check_index("update", index)
    check_values("update", index, priority)
    capacity = _tree_of(buffer, priority.dtype)
    index, priority = index.contiguous(), priority.contiguous()
    step = 1 if priority.ndim else 0
    status = functions().rl_tree_set(buffer.data_ptr(), index.data_ptr(), priority.data_ptr(), index.numel(), step)
    if status:
        refuse(status, capacity=capacity, index=index, value=priority)


def _set_errors(
    buffer: Tensor,
    index: Tensor,
    error: Tensor,
    eps: float,
    alpha: float,
    raw: Tensor | None,
    largest: Tensor | None,
    rows: int,
) -> None:
    check_index("update_from_errors", index)
    check_values("update_from_errors", index, error)
    capacity = _tree_of(buffer, error.dtype)
    rows = min(rows, capacity)
    if raw is not None:
        check_target("raw", raw, error.dtype, capacity)
    if largest is not None:
        check_target("largest", largest, error.dtype, None)
    index, error = index.contiguous(), error.contiguous()
    status = functions().rl_tree_set_errors(
        pack_errors(
            buffer.data_ptr(),
            index.data_ptr(),
            error.data_ptr(),
            index.numel(),
            1 if error.ndim else 0,
            eps,
            alpha,
            rows,
            0 if raw is None else raw.data_ptr(),
            0 if largest is None else largest.data_ptr(),
        )
    )
    if status:
        refuse(status, capacity=rows, index=index, value=error, power=(eps, alpha))


def _sample(
    buffer: Tensor,
    n: int,
    seed: Tensor,
    u: Tensor | None,
    stratified: bool,  # noqa: FBT001  of the schema
    beta: float | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    capacity = _tree_of(buffer, dtype)
    if u is not None and (u.dtype is not torch.float64 or u.shape != (n,)):
        raise SpecError(f"NativePriorityTree.sample: u is {tuple(u.shape)} of {u.dtype}; it is ({n},) of float64")
    index, found = buffer.new_empty(n, dtype=torch.int64), buffer.new_empty(n, dtype=dtype)
    u = None if u is None else u.contiguous()
    found_at = found.data_ptr()
    status = functions().rl_tree_sample(
        pack_draws(
            buffer.data_ptr(),
            n,
            seed.data_ptr(),
            0 if u is None else u.data_ptr(),
            stratified,
            beta or 0.0,
            index.data_ptr(),
            found_at if beta is None else 0,
            0 if beta is None else found_at,
        )
    )
    if status:
        refuse(status, capacity=capacity, value=u)
    return index, found


def _get(buffer: Tensor, index: Tensor, dtype: torch.dtype) -> Tensor:
    check_index("get", index)
    capacity = _tree_of(buffer, dtype)
    index = index.contiguous()
    priority = buffer.new_empty(index.shape, dtype=dtype)
    status = functions().rl_tree_get(buffer.data_ptr(), index.data_ptr(), priority.data_ptr(), index.numel())
    if status:
        refuse(status, capacity=capacity, index=index)
    return priority


def _rebuild(buffer: Tensor, dtype: torch.dtype) -> None:
    capacity = _tree_of(buffer, dtype)
    status = functions().rl_tree_rebuild(buffer.data_ptr())
    if status:
        start = leaves_at(capacity, dtype)
        refuse(status, capacity=capacity, value=buffer[start : start + capacity * dtype.itemsize].view(dtype))


def _fake_sample(buffer: Tensor, n: int, *others: object) -> tuple[Tensor, Tensor]:
    dtype = cast(torch.dtype, others[-1])
    return buffer.new_empty(n, dtype=torch.int64), buffer.new_empty(n, dtype=dtype)


def _fake_get(buffer: Tensor, index: Tensor, dtype: torch.dtype) -> Tensor:
    return buffer.new_empty(index.shape, dtype=dtype)


def _fake_rebuild(buffer: Tensor, dtype: torch.dtype) -> None:
    """Nothing is returned, and one tensor alone is read and written."""


def _fake_set(buffer: Tensor, index: Tensor, priority: Tensor) -> None:
    check_apart_traced(buffer, index, priority)


def _fake_set_errors(buffer: Tensor, index: Tensor, error: Tensor, *others: object) -> None:
    raw, largest = cast("tuple[Tensor | None, Tensor | None]", others[2:4])
    check_apart_traced(buffer, index, error, raw, largest)


for _name, _function in {
    "tree_set": _set,
    "tree_set_errors": _set_errors,
    "tree_sample": _sample,
    "tree_get": _get,
    "tree_rebuild": _rebuild,
}.items():
    _LIBRARY.impl(_name, _function, "CPU")
register_fake("rl_native::tree_set", _fake_set, lib=_LIBRARY)
register_fake("rl_native::tree_set_errors", _fake_set_errors, lib=_LIBRARY)
register_fake("rl_native::tree_sample", _fake_sample, lib=_LIBRARY)
register_fake("rl_native::tree_get", _fake_get, lib=_LIBRARY)
register_fake("rl_native::tree_rebuild", _fake_rebuild, lib=_LIBRARY)

tree_set = torch.ops.rl_native.tree_set.default
tree_set_errors = torch.ops.rl_native.tree_set_errors.default
tree_sample = torch.ops.rl_native.tree_sample.default
tree_get = torch.ops.rl_native.tree_get.default
tree_rebuild = torch.ops.rl_native.tree_rebuild.default
