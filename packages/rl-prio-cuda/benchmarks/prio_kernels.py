"""Kernels of the benchmark alone, in Triton: loads that wait for one another, and a draw by a warp."""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

LINE = 16
"""int64 in a line of the cache."""


@triton.jit(do_not_specialize=["steps"])
def _follow(ring, at, steps):
    here = tl.load(at)
    for _ in range(steps):
        here = tl.load(ring + here, cache_modifier=".cg")  # past the first level of cache
    tl.store(at, here)


def follow(ring: Tensor, at: Tensor, steps: int) -> None:
    """Take `steps` steps on a ring, each with a load that waits for the one before.

    Args:
        ring: int64, where to go from each place.
        at: int64 ``[1]``, where to begin; then where it came to.
        steps: how many.
    """
    _follow[(1,)](ring, at, steps, num_warps=1)


@triton.jit(do_not_specialize=["levels", "leaves"])
def _draw(tree, at, u, index, levels, leaves):
    query = tl.program_id(0)
    doubles = tree.to(tl.pointer_type(tl.float64))
    rest = tl.load(u + query) * tl.load(doubles + 3)
    node = query.to(tl.int64) * 0
    lane = tl.arange(0, 8)
    for height in range(levels):
        ends = tl.cumsum(tl.load(doubles + tl.load(at + levels - 1 - height) // 8 + node * 16 + lane), 0)
        child = tl.minimum(tl.sum((ends <= rest).to(tl.int32), 0), 7)
        rest -= tl.sum(tl.where(lane == child - 1, ends, 0.0), 0)
        node = node * 8 + child
    leaf = tl.arange(0, 16)
    priorities = tl.load(tree.to(tl.pointer_type(tl.float32)) + leaves // 4 + node * 16 + leaf)
    ends = tl.cumsum(priorities.to(tl.float64), 0)
    child = tl.minimum(tl.sum((ends <= rest).to(tl.int32), 0), 15)
    tl.store(index + query, node * 16 + child)


def draw_by_warps(buffer: Tensor, at: Tensor, leaves: int, u: Tensor) -> Tensor:
    """Indices ``[n]`` of float32 leaves; a warp for each draw, where the library takes a thread.

    An experiment: what rounding leads beside a leaf is not put right.

    Args:
        buffer: of a tree.
        at: int64, where its levels lie, lowest first.
        leaves: where its leaves begin.
        u: ``[n]`` float64.
    """
    index = torch.empty(u.shape, dtype=torch.int64, device=u.device)
    _draw[(len(u),)](buffer, at, u, index, len(at), leaves, num_warps=1)
    return index
