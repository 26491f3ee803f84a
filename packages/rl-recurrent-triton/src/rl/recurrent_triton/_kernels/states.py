"""States before each step, with resets applied, in Triton; input of the weight-gradient products."""
# mypy: ignore-errors
# pyright: basic, reportArgumentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportReturnType=false, reportOptionalMemberAccess=false, reportInvalidTypeForm=false
# ruff: noqa: ANN001, ANN202, N803, PLR0913, PLR0917

import triton
import triton.language as tl

from rl.recurrent_triton._kernels.tiles import previous, restarts, row_at, state_tile, within

_NUMBERS = ["batch", "time", "first", "span", "mask_b", "mask_t", "reset_h_b", "reset_h_t"]


@triton.jit(do_not_specialize=_NUMBERS)
def states_before(
    h0,
    h,
    mask,
    reset_h,
    out,
    batch: tl.int32,
    time: tl.int32,
    first: tl.int32,
    span: tl.int32,
    mask_b: tl.int64,
    mask_t: tl.int64,
    reset_h_b: tl.int64,
    reset_h_t: tl.int64,
    H: tl.constexpr,
    BB: tl.constexpr,
    BN: tl.constexpr,
    RESET_H_UNIT: tl.constexpr,
):
    """Row b * span + i of `out` is the state of row b before step first + i; a program has BB of them, BN columns."""
    item = tl.program_id(0).to(tl.int64) * BB + tl.arange(0, BB)
    b, t = item // span, first + item % span
    rows = b < batch
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    exist = within(n, H, BN)
    restart = restarts(mask, b, t, rows, mask_b, mask_t)
    h_reset = row_at(reset_h, b, t, reset_h_b, reset_h_t, RESET_H_UNIT)
    x = state_tile(previous(h0, h, b, t, time, H), h_reset, n, rows & ~restart, restart, exist, "")
    tl.store(out + item[:, None] * H + n[None, :], x.to(out.dtype.element_ty), mask=rows[:, None] & exist[None, :])
