"""The tree as operators of torch, so that a compiled graph holds it without a break.

Eager code calls C directly, which is faster. The operators are registered when this module is imported.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor
from torch.library import Library, register_fake

from rl.native._tree_calls import functions, refuse

__all__ = ["tree_get", "tree_sample", "tree_set", "tree_set_errors"]

_LIBRARY = Library("rl_native", "FRAGMENT")
_LIBRARY.define("tree_set(Tensor(a!) buffer, Tensor index, Tensor priority) -> ()")
_LIBRARY.define("tree_set_errors(Tensor(a!) buffer, Tensor index, Tensor td_error, float eps, float alpha) -> ()")
_LIBRARY.define(
    "tree_sample(Tensor buffer, SymInt n, Tensor seed, Tensor? u, bool stratified, float? beta, ScalarType dtype)"
    " -> (Tensor, Tensor)"
)
_LIBRARY.define("tree_get(Tensor buffer, Tensor index, ScalarType dtype) -> Tensor")


def _capacity(buffer: Tensor) -> int:
    return int(buffer[8:16].view(torch.int64).item())


def _set(buffer: Tensor, index: Tensor, priority: Tensor) -> None:
    index, priority = index.contiguous(), priority.contiguous()
    step = 1 if priority.ndim else 0
    status = functions().rl_tree_set(buffer.data_ptr(), index.data_ptr(), priority.data_ptr(), index.numel(), step)
    if status:
        refuse(status, capacity=_capacity(buffer), index=index, value=priority)


def _set_errors(buffer: Tensor, index: Tensor, td_error: Tensor, eps: float, alpha: float) -> None:
    index, td_error = index.contiguous(), td_error.contiguous()
    status = functions().rl_tree_set_errors(
        buffer.data_ptr(), index.data_ptr(), td_error.data_ptr(), index.numel(), eps, alpha
    )
    if status:
        refuse(status, capacity=_capacity(buffer), index=index, value=td_error)


def _sample(
    buffer: Tensor,
    n: int,
    seed: Tensor,
    u: Tensor | None,
    stratified: bool,  # noqa: FBT001  of the schema
    beta: float | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    index, found = torch.empty(n, dtype=torch.int64), torch.empty(n, dtype=dtype)
    u = None if u is None else u.contiguous()
    status = functions().rl_tree_sample(
        buffer.data_ptr(),
        n,
        seed.data_ptr(),
        None if u is None else u.data_ptr(),
        stratified,
        beta or 0.0,
        index.data_ptr(),
        found.data_ptr() if beta is None else None,
        None if beta is None else found.data_ptr(),
    )
    if status:
        refuse(status, capacity=_capacity(buffer), value=u)
    return index, found


def _get(buffer: Tensor, index: Tensor, dtype: torch.dtype) -> Tensor:
    index = index.contiguous()
    priority = torch.empty(index.shape, dtype=dtype)
    status = functions().rl_tree_get(buffer.data_ptr(), index.data_ptr(), priority.data_ptr(), index.numel())
    if status:
        refuse(status, capacity=_capacity(buffer), index=index)
    return priority


def _fake_sample(buffer: Tensor, n: int, *others: object) -> tuple[Tensor, Tensor]:
    dtype = cast(torch.dtype, others[-1])
    return buffer.new_empty(n, dtype=torch.int64), buffer.new_empty(n, dtype=dtype)


def _fake_get(buffer: Tensor, index: Tensor, dtype: torch.dtype) -> Tensor:
    return buffer.new_empty(index.shape, dtype=dtype)


def _fake_write(*_: object) -> None:
    """Writes into the buffer, returns nothing."""


for _name, _function in {
    "tree_set": _set,
    "tree_set_errors": _set_errors,
    "tree_sample": _sample,
    "tree_get": _get,
}.items():
    _LIBRARY.impl(_name, _function, "CPU")
register_fake("rl_native::tree_set", _fake_write, lib=_LIBRARY)
register_fake("rl_native::tree_set_errors", _fake_write, lib=_LIBRARY)
register_fake("rl_native::tree_sample", _fake_sample, lib=_LIBRARY)
register_fake("rl_native::tree_get", _fake_get, lib=_LIBRARY)

tree_set = torch.ops.rl_native.tree_set.default
tree_set_errors = torch.ops.rl_native.tree_set_errors.default
tree_sample = torch.ops.rl_native.tree_sample.default
tree_get = torch.ops.rl_native.tree_get.default
