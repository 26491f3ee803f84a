"""Operators of torch for the CUDA tree, so that compiled graphs have no break.

Eager code calls `_calls` directly, which is faster. The operators are registered when this module is imported.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import Library, register_fake

from rl.prio_cuda import _calls as calls
from rl.prio_cuda._arguments import check_apart, check_apart_traced

__all__ = ["implement", "tree_get", "tree_sample", "tree_set", "tree_set_errors"]

_LIBRARY = Library("rl_prio_cuda", "FRAGMENT")
_TREE = "Tensor(b!) work, int capacity, int bits"
_LIBRARY.define(f"tree_set(Tensor(a!) buffer, {_TREE}, Tensor index, Tensor priority, int rows) -> ()")
_LIBRARY.define(
    f"tree_set_errors(Tensor(a!) buffer, {_TREE}, Tensor index, Tensor error, float eps, float alpha,"
    " Tensor(c!)? raw, Tensor(d!)? largest, int rows) -> ()"
)
_LIBRARY.define(f"tree_sample(Tensor buffer, {_TREE}, Tensor u, bool stratified, float? beta) -> (Tensor, Tensor)")
_LIBRARY.define(f"tree_get(Tensor buffer, {_TREE}, Tensor index) -> Tensor")


def _set(buffer: Tensor, work: Tensor, capacity: int, bits: int, index: Tensor, priority: Tensor, rows: int) -> None:
    index, priority = index.contiguous(), priority.contiguous()
    check_apart("rl_prio_cuda::tree_set", buffer, index, priority)
    calls.update(buffer, work, capacity, bits, index, priority, rows)


def _set_errors(  # noqa: PLR0913, PLR0917  of the schema
    buffer: Tensor,
    work: Tensor,
    capacity: int,
    bits: int,
    index: Tensor,
    error: Tensor,
    eps: float,
    alpha: float,
    raw: Tensor | None,
    largest: Tensor | None,
    rows: int,
) -> None:
    index, error = index.contiguous(), error.contiguous()
    check_apart("rl_prio_cuda::tree_set_errors", buffer, index, error, raw, largest)
    calls.update_from_errors(buffer, work, capacity, bits, index, error, eps, alpha, raw, largest, rows)


def _sample(
    buffer: Tensor,
    work: Tensor,
    capacity: int,
    bits: int,
    u: Tensor,
    stratified: bool,  # noqa: FBT001  of the schema
    beta: float | None,
) -> tuple[Tensor, Tensor]:
    return calls.sample(buffer, work, capacity, bits, u.contiguous(), stratified, beta)


def _get(buffer: Tensor, work: Tensor, capacity: int, bits: int, index: Tensor) -> Tensor:
    return calls.get(buffer, work, capacity, bits, index.contiguous())


def _fake_sample(*arguments: Any) -> tuple[Tensor, Tensor]:
    _, _, _, bits, u, *_ = arguments
    return u.new_empty(u.shape, dtype=torch.int64), u.new_empty(u.shape, dtype=calls.DTYPES[bits])


def _fake_get(*arguments: Any) -> Tensor:
    _, _, _, bits, index = arguments
    return index.new_empty(index.shape, dtype=calls.DTYPES[bits])


def _fake_set(*arguments: Any) -> None:
    buffer, _, _, _, index, priority, _ = arguments
    check_apart_traced("rl_prio_cuda::tree_set", buffer, index, priority)


def _fake_set_errors(*arguments: Any) -> None:
    buffer, _, _, _, index, error, _, _, raw, largest, _ = arguments
    check_apart_traced("rl_prio_cuda::tree_set_errors", buffer, index, error, raw, largest)


def implement(library: Library, key: str) -> None:
    """Give the operators their functions for tensors of one kind of device.

    Args:
        library: of the namespace rl_prio_cuda; the functions go when it goes.
        key: ``"CUDA"``; tests take ``"CPU"`` too.
    """
    functions = {"tree_set": _set, "tree_set_errors": _set_errors, "tree_sample": _sample, "tree_get": _get}
    for name, function in functions.items():
        library.impl(name, function, key)


implement(_LIBRARY, "CUDA")
register_fake("rl_prio_cuda::tree_set", _fake_set, lib=_LIBRARY)
register_fake("rl_prio_cuda::tree_set_errors", _fake_set_errors, lib=_LIBRARY)
register_fake("rl_prio_cuda::tree_sample", _fake_sample, lib=_LIBRARY)
register_fake("rl_prio_cuda::tree_get", _fake_get, lib=_LIBRARY)

tree_set = torch.ops.rl_prio_cuda.tree_set.default
tree_set_errors = torch.ops.rl_prio_cuda.tree_set_errors.default
tree_sample = torch.ops.rl_prio_cuda.tree_sample.default
tree_get = torch.ops.rl_prio_cuda.tree_get.default
