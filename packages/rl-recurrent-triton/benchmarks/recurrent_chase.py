# ruff: noqa: ANN001, ANN201  a kernel
"""Loads that wait for one another."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["count"])
def follow(ring, out, count):
    """Go `count` steps through a ring of places."""
    at = tl.load(out)
    for _ in range(count):
        at = tl.load(ring + at, cache_modifier=".cg")
    tl.store(out, at)
