"""What a tree does with arguments that C, see `csrc/tree_python.c`, found unusual: make them usual, or refuse them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl.core.errors import SpecError
from rl.native import _tree_ops as ops
from rl.native._tree_calls import (
    as_uniforms,
    as_values,
    check_index,
    check_target,
    check_values,
    draws_of,
    functions,
    pack_draws,
    pack_errors,
    refuse,
    rows_of,
    scratch,
)

__all__ = ["draw", "sample", "update", "update_from_errors"]

_INF = float("inf")
_compiling = torch.compiler.is_compiling


def _batch(what: str, index: Tensor, value: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Both as C reads them."""
    check_index(what, index)
    check_values(what, index, value)
    if value.dtype is not dtype:
        value = as_values(what, value, dtype)
    return index.contiguous(), value.contiguous()


def _signed(value: Tensor) -> Tensor:
    """A single value as it is: its memory may hold the other sign, though it is contiguous."""
    return value.resolve_neg() if value.numel() == 1 else value


def update(buffer: Tensor, dtype: torch.dtype, capacity: int, index: Tensor, priority: Tensor) -> None:
    """`NativePriorityTree.update` on the buffer of a tree."""
    index, priority = _batch("update", index, priority, dtype)
    if _compiling():
        ops.tree_set(buffer, index, priority.detach())
        return
    priority = _signed(priority)
    places = buffer.data_ptr(), index.data_ptr(), priority.data_ptr()
    status = functions().rl_tree_set(*places, index.numel(), 1 if priority.ndim else 0)
    if status:
        refuse(status, capacity=capacity, index=index, value=priority)


def update_from_errors(
    buffer: Tensor,
    dtype: torch.dtype,
    capacity: int,
    index: Tensor,
    error: Tensor,
    eps: float,
    alpha: float,
    raw: Tensor | None,
    largest: Tensor | None,
    rows: int | None,
) -> None:
    """`NativePriorityTree.update_from_errors` on the buffer of a tree."""
    if not (0 <= eps < _INF and 0 <= alpha < _INF):
        raise SpecError(f"NativePriorityTree: eps and alpha are finite and at least 0; they are {eps} and {alpha}")
    index, error = _batch("update_from_errors", index, error, dtype)
    limit = rows_of(rows, capacity)
    if raw is not None:
        check_target("raw", raw, dtype, capacity)
    if largest is not None:
        check_target("largest", largest, dtype, None)
    if _compiling():
        ops.tree_set_errors(buffer, index, error.detach(), eps, alpha, raw, largest, limit)
        return
    error = _signed(error)
    places = buffer.data_ptr(), index.data_ptr(), error.data_ptr(), index.numel(), 1 if error.ndim else 0
    beside = 0 if raw is None else raw.data_ptr(), 0 if largest is None else largest.data_ptr()
    status = functions().rl_tree_set_errors(pack_errors(*places, eps, alpha, limit, *beside))
    if status:
        refuse(status, capacity=limit, index=index, value=error, power=(eps, alpha))


def sample(
    buffer: Tensor,
    dtype: torch.dtype,
    capacity: int,
    n: Any,
    generator: torch.Generator | None,
    stratified: bool,  # noqa: FBT001  called twice
    u: Tensor | None,
    beta: float | None,
) -> tuple[Tensor, Tensor]:
    """`NativePriorityTree.sample`, and `sample_weighted` if there is a beta, on the buffer of a tree."""
    n = draws_of(n)
    if u is not None:
        u = as_uniforms(u, n)
    if _compiling():
        seed = torch.randint(0, 2**62, (), generator=generator, device="cpu")
        return ops.tree_sample(buffer, n, seed, u, bool(stratified), beta, dtype)
    new_index, make_seed, seed = scratch.parts
    index, found = new_index(n), buffer.new_empty(n, dtype=dtype)
    if u is None:
        make_seed(generator=generator)
    draw(buffer, capacity, seed if u is None else None, u, bool(stratified), beta, index, found)
    return index, found


def draw(
    buffer: Tensor,
    capacity: int,
    seed: Tensor | None,
    u: Tensor | None,
    stratified: bool,  # noqa: FBT001  called twice
    beta: float | None,
    index: Tensor,
    found: Tensor,
) -> None:
    """Fill `index` and `found`, of the CPU and one size, from a seed or from randomness itself."""
    places = buffer.data_ptr(), index.numel(), 0 if seed is None else seed.data_ptr(), 0 if u is None else u.data_ptr()
    found_at = found.data_ptr()
    ends = (0.0, index.data_ptr(), found_at, 0) if beta is None else (beta, index.data_ptr(), 0, found_at)
    status = functions().rl_tree_sample(pack_draws(*places, bool(stratified), *ends))
    if status:
        refuse(status, capacity=capacity, value=u)
