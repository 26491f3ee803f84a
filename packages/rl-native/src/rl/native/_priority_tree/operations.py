"""Operations of the priority tree: argument checks, the call of C, and the same functions as operators of torch.

Eager calls run these functions directly, compiled graphs through ``torch.ops.rl_native``. The operators are registered
when this module is imported.
"""

from __future__ import annotations

import threading
from typing import cast

import torch
from torch import Tensor
from torch.library import Library, register_fake

from rl.core.errors import SpecError
from rl.native._priority_tree.arguments import (
    check_apart_traced,
    check_beta,
    check_index,
    check_number,
    check_power,
    check_target,
    prepare_batch,
    prepare_uniforms,
)
from rl.native._priority_tree.calls import functions, leaves_at, open_tree, pack_draws, pack_errors, raise_status
from rl.native._tracing import away

__all__ = ["get", "make_seed", "rebuild", "sample", "set_errors", "set_priorities"]

_LIBRARY = Library("rl_native", "FRAGMENT")
_LIBRARY.define("tree_set(Tensor(a!) buffer, Tensor index, Tensor priority) -> ()")
_LIBRARY.define(
    "tree_set_errors(Tensor(a!) buffer, Tensor index, Tensor error, float eps, float alpha, Tensor(b!)? raw,"
    " Tensor(c!)? largest, SymInt? rows) -> ()"
)
_LIBRARY.define(
    "tree_sample(Tensor buffer, SymInt n, Tensor seed, Tensor? u, bool stratified, float? beta, ScalarType dtype)"
    " -> (Tensor, Tensor)"
)
_LIBRARY.define("tree_get(Tensor buffer, Tensor index, ScalarType dtype) -> Tensor")
_LIBRARY.define("tree_rebuild(Tensor(a!) buffer, ScalarType dtype) -> ()")


def set_priorities(buffer: Tensor, capacity: int, dtype: torch.dtype, index: Tensor, priority: Tensor) -> None:
    """`NativePriorityTree.update` on the buffer of a tree."""
    index, priority = prepare_batch("update", index, priority, dtype)
    status = functions().rl_tree_set(
        buffer.data_ptr(), index.data_ptr(), priority.data_ptr(), index.numel(), 1 if priority.dim() else 0
    )
    if status:
        raise_status(status, capacity=capacity, index=index, value=priority)


def set_errors(
    buffer: Tensor,
    capacity: int,
    dtype: torch.dtype,
    index: Tensor,
    error: Tensor,
    eps: float,
    alpha: float,
    raw: Tensor | None,
    largest: Tensor | None,
    rows: int | None,
) -> None:
    """`NativePriorityTree.update_from_errors` on the buffer of a tree."""
    check_power(eps, alpha)
    index, error = prepare_batch("update_from_errors", index, error, dtype)
    limit = capacity if rows is None else min(check_number("update_from_errors: rows", rows), capacity)
    raw_at = largest_at = 0
    if raw is not None:
        check_target("raw", raw, dtype, (capacity,))
        raw_at = raw.data_ptr()
    if largest is not None:
        check_target("largest", largest, dtype, ())
        largest_at = largest.data_ptr()
    batch = buffer.data_ptr(), index.data_ptr(), error.data_ptr(), index.numel(), 1 if error.dim() else 0
    status = functions().rl_tree_set_errors(pack_errors(*batch, eps, alpha, limit, raw_at, largest_at))
    if status:
        raise_status(status, capacity=limit, index=index, value=error, power=(eps, alpha))


class _Scratch(threading.local):
    """Memory for a seed, one for each thread: allocating it costs as much as sampling 32 rows."""

    def __init__(self) -> None:
        self.seed = away(lambda: torch.empty((), dtype=torch.int64, device="cpu"))


_scratch = _Scratch()


def make_seed(generator: torch.Generator | None) -> Tensor:
    """A random seed ``[]`` for `sample`; valid until the next call in this thread."""
    if torch.compiler.is_compiling():
        return torch.randint(0, 2**62, (), generator=generator, device="cpu")
    return _scratch.seed.random_() if generator is None else _scratch.seed.random_(generator=generator)


def sample(
    buffer: Tensor,
    capacity: int,
    dtype: torch.dtype,
    n: int,
    seed: Tensor | None,
    u: Tensor | None,
    stratified: bool,  # noqa: FBT001  of the schema
    beta: float | None,
) -> tuple[Tensor, Tensor]:
    """`NativePriorityTree.sample`, or `sample_weighted` if `beta` is given, on the buffer of a tree."""
    n = check_number("sample: n", n)
    u = None if u is None else prepare_uniforms(u, n)
    index, found = buffer.new_empty(n, dtype=torch.int64), buffer.new_empty(n, dtype=dtype)
    found_at = found.data_ptr()
    status = functions().rl_tree_sample(
        pack_draws(
            buffer.data_ptr(),
            n,
            0 if seed is None else seed.data_ptr(),
            0 if u is None else u.data_ptr(),
            stratified,
            beta or 0.0,
            index.data_ptr(),
            found_at if beta is None else 0,
            0 if beta is None else found_at,
        )
    )
    if status:
        raise_status(status, capacity=capacity, value=u)
    return index, found


def get(buffer: Tensor, capacity: int, dtype: torch.dtype, index: Tensor) -> Tensor:
    """`NativePriorityTree.get` on the buffer of a tree."""
    check_index("get", index)
    index = index.contiguous()
    priority = torch.empty(index.shape, dtype=dtype, device="cpu")
    status = functions().rl_tree_get(buffer.data_ptr(), index.data_ptr(), priority.data_ptr(), index.numel())
    if status:
        raise_status(status, capacity=capacity, index=index)
    return priority


def rebuild(buffer: Tensor, capacity: int, dtype: torch.dtype) -> None:
    """`NativePriorityTree.rebuild` on the buffer of a tree."""
    status = functions().rl_tree_rebuild(buffer.data_ptr())
    if status:
        start = leaves_at(capacity, dtype)
        leaves = buffer[start : start + capacity * dtype.itemsize].view(dtype)
        raise_status(status, capacity=capacity, value=leaves)


def _open(buffer: Tensor, dtype: torch.dtype) -> tuple[Tensor, int, torch.dtype]:
    """The buffer, capacity and dtype of a tree, whose dtype must be as declared."""
    capacity, found = open_tree(buffer)
    if found is not dtype:
        raise SpecError(f"NativePriorityTree: the graph was compiled for {dtype}, but the tree holds {found}")
    return buffer, capacity, dtype


def _set_op(buffer: Tensor, index: Tensor, priority: Tensor) -> None:
    set_priorities(buffer, *open_tree(buffer), index, priority)


def _set_errors_op(
    buffer: Tensor,
    index: Tensor,
    error: Tensor,
    eps: float,
    alpha: float,
    raw: Tensor | None,
    largest: Tensor | None,
    rows: int | None,
) -> None:
    set_errors(buffer, *open_tree(buffer), index, error, eps, alpha, raw, largest, rows)


def _sample_op(
    buffer: Tensor,
    n: int,
    seed: Tensor,
    u: Tensor | None,
    stratified: bool,  # noqa: FBT001  of the schema
    beta: float | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    if seed.dtype is not torch.int64 or seed.shape != () or not seed.is_cpu:
        raise SpecError(
            f"NativePriorityTree.sample: the seed is {seed.dtype} {list(seed.shape)} on {seed.device}, expected"
            " torch.int64 [] on the CPU"
        )
    if beta is not None:
        check_beta(beta)
    return sample(*_open(buffer, dtype), n, seed, u, stratified, beta)


def _get_op(buffer: Tensor, index: Tensor, dtype: torch.dtype) -> Tensor:
    return get(*_open(buffer, dtype), index)


def _rebuild_op(buffer: Tensor, dtype: torch.dtype) -> None:
    rebuild(*_open(buffer, dtype))


def _fake_set(buffer: Tensor, index: Tensor, priority: Tensor) -> None:
    prepare_batch("update", index, priority, priority.dtype)
    check_apart_traced(buffer, index, priority)


def _fake_set_errors(buffer: Tensor, index: Tensor, error: Tensor, *others: object) -> None:
    eps, alpha, raw, largest = cast("tuple[float, float, Tensor | None, Tensor | None]", others[:4])
    check_power(eps, alpha)
    prepare_batch("update_from_errors", index, error, error.dtype)
    check_apart_traced(buffer, index, error, raw, largest)


def _fake_sample(buffer: Tensor, n: int, *others: object) -> tuple[Tensor, Tensor]:
    dtype = cast(torch.dtype, others[-1])
    return buffer.new_empty(n, dtype=torch.int64), buffer.new_empty(n, dtype=dtype)


def _fake_get(buffer: Tensor, index: Tensor, dtype: torch.dtype) -> Tensor:
    check_index("get", index)
    return buffer.new_empty(index.shape, dtype=dtype)


def _fake_rebuild(buffer: Tensor, dtype: torch.dtype) -> None:
    """No output, and nothing to check without memory."""


for _name, _function, _fake in (
    ("tree_set", _set_op, _fake_set),
    ("tree_set_errors", _set_errors_op, _fake_set_errors),
    ("tree_sample", _sample_op, _fake_sample),
    ("tree_get", _get_op, _fake_get),
    ("tree_rebuild", _rebuild_op, _fake_rebuild),
):
    _LIBRARY.impl(_name, _function, "CPU")
    register_fake(f"rl_native::{_name}", _fake, lib=_LIBRARY)
