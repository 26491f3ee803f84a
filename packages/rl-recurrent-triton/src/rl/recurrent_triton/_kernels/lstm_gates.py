"""The four slots of the gates of an LSTM, i, f, g, o, in Triton."""
# mypy: ignore-errors
# pyright: basic, reportArgumentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportReturnType=false, reportOptionalMemberAccess=false, reportInvalidTypeForm=false
# ruff: noqa: ANN001, ANN202, N803

import triton
import triton.language as tl

from rl.recurrent_triton._kernels.arithmetic import sigmoid, tanh
from rl.recurrent_triton._kernels.tiles import load_gate

__all__ = ["activate", "load_gates", "store_gates"]


@triton.jit
def load_gates(at, tile, H: tl.constexpr, LIKE: tl.constexpr):
    return (
        load_gate(at, tile, LIKE),
        load_gate(at + H, tile, LIKE),
        load_gate(at + 2 * H, tile, LIKE),
        load_gate(at + 3 * H, tile, LIKE),
    )


@triton.jit
def activate(i, f, g, o):
    return sigmoid(i), sigmoid(f), tanh(g), sigmoid(o)


@triton.jit
def store_gates(at, tile, i, f, g, o, H: tl.constexpr):
    kind = at.dtype.element_ty
    tl.store(at, i.to(kind), mask=tile)
    tl.store(at + H, f.to(kind), mask=tile)
    tl.store(at + 2 * H, g.to(kind), mask=tile)
    tl.store(at + 3 * H, o.to(kind), mask=tile)
