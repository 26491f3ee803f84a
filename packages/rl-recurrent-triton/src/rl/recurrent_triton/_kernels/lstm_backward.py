"""Backward pass of the LSTM in Triton. `tiles` defines names and sizes, `_launch` the arguments.

From the last step to the first: the gradient of h is that of the output plus ``d_gates W_hh`` of the step after, and
`lstm_gradients` turns the gradients of h and c into those of the gates and of the c before. Rows that are reset before
the step after pass nothing back; their gradient is that of the stored state. Gradients of the weights are products over
all steps, outside of these kernels.

It has one function that finishes a tile of one step (`_tile`), and two kernels around it, which differ in where
weights and states stay between the steps:

- ``group``: the programs of a batch tile exchange their states after each step; each keeps its part of the weights
  (AHEAD > 0: number of pieces of the state read at once), or reads it again in each step (AHEAD = 0).
- ``resident``: one program has all columns, and keeps weights and states.
"""
# mypy: ignore-errors
# pyright: basic, reportArgumentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportReturnType=false, reportOptionalMemberAccess=false, reportInvalidTypeForm=false
# ruff: noqa: ANN001, ANN202, N803, N806, PLR0913, PLR0917

import triton
import triton.language as tl

from rl.recurrent_triton._kernels.tiles import (
    activate,
    announce,
    await_others,
    counter_of,
    cut,
    dot,
    keep_rows,
    load_gates,
    lstm_gradients,
    previous,
    products,
    restarts,
    row_at,
    rows_of,
    state_tile,
    states_ahead,
    store_gates,
    tile_at,
    within,
)

_NUMBERS = ["batch", "time", "first", "span", "start", "stop", "mask_b", "mask_t", "reset_c_b", "reset_c_t"]
_NUMBERS += ["grad_h_b", "grad_h_t", "grad_c_b", "grad_c_t", "grad_reset_b", "grad_reset_t"]


@triton.jit
def _tile(
    dh,
    dc,
    c_before,
    gates_at,
    grad_gates_at,
    c_at,
    grad_h_at,
    grad_c_at,
    tile,
    counter,
    H: tl.constexpr,
    ACTIVATED: tl.constexpr,
):
    """Finish a tile of one step: add this step's gradients to `dh` and `dc`, write those of the gates.

    Returns:
        The gradients of the four gates, and of the c before the step.
    """
    LIKE: tl.constexpr = dc.dtype
    i, f, g, o = load_gates(gates_at, tile, H, LIKE)
    if not ACTIVATED:
        i, f, g, o = activate(i, f, g, o)
    c = tl.load(c_at, mask=tile, other=0.0).to(LIKE)
    if grad_h_at is not None:
        dh += tl.load(grad_h_at, mask=tile, other=0.0).to(LIKE)
    if grad_c_at is not None:
        dc += tl.load(grad_c_at, mask=tile, other=0.0).to(LIKE)
    d_i, d_f, d_g, d_o, dc = lstm_gradients(i, f, g, o, c_before, c, dh, dc)
    store_gates(grad_gates_at, tile, d_i, d_f, d_g, d_o, H)
    if counter is not None:
        announce(counter)
    return d_i, d_f, d_g, d_o, dc


@triton.jit(do_not_specialize=["tile0", *_NUMBERS])
def lstm_backward_group(
    counters,
    tile0: tl.int32,
    gates,
    weight,
    c0,
    mask,
    reset_c,
    c,
    grad_h,
    grad_c,
    incoming_h,
    incoming_c,
    grad_gates,
    grad_reset_c,
    batch: tl.int32,
    time: tl.int32,
    first: tl.int32,
    span: tl.int32,
    start: tl.int32,
    stop: tl.int32,
    mask_b: tl.int64,
    mask_t: tl.int64,
    reset_c_b: tl.int64,
    reset_c_t: tl.int64,
    grad_h_b: tl.int64,
    grad_h_t: tl.int64,
    grad_c_b: tl.int64,
    grad_c_t: tl.int64,
    grad_reset_b: tl.int64,
    grad_reset_t: tl.int64,
    H: tl.constexpr,
    BB: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    AHEAD: tl.constexpr,
    RESET_C_UNIT: tl.constexpr,
    GRAD_H_UNIT: tl.constexpr,
    GRAD_C_UNIT: tl.constexpr,
    GRAD_RESET_UNIT: tl.constexpr,
    ACTIVATED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """All steps; a program keeps the gradient of its c and, if AHEAD, its weights, and reads the others' gates."""
    TILES: tl.constexpr = (4 * H + BK - 1) // BK
    b, rows = rows_of(batch, BB, tile0)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    exist = within(n, H, BN)
    tile = rows[:, None] & exist[None, :]
    counter, programs = counter_of(counters, tile0), tl.num_programs(1)
    if AHEAD:
        kept = keep_rows(weight, n, H, 4 * H, BK, BN)
    own = b[:, None] * H + n[None, :]
    dc = tl.load(incoming_c + own, mask=tile, other=0.0)
    for back in range(stop - start):
        t = stop - 1 - back
        restart = restarts(mask, b, t, rows, mask_b, mask_t)
        later = rows & (back > 0)
        onward = later & ~restarts(mask, b, t + 1, later, mask_b, mask_t)
        c_reset = row_at(reset_c, b, t, reset_c_b, reset_c_t, RESET_C_UNIT)
        c_before = state_tile(previous(c0, c, b, t, time, H), c_reset, n, rows & ~restart, restart, exist, "")
        gate_row = (b * span + (t - first)) * (4 * H)
        dh = tl.load(incoming_h + own, mask=tile & (back == 0), other=0.0)
        await_others(counter, back * programs)
        later_row = grad_gates + gate_row + 4 * H  # gradients of the gates of the step after
        if AHEAD:
            for q0 in tl.static_range(0, TILES, AHEAD):
                x = states_ahead(later_row, None, onward, restart, 4 * H, BK, q0, min(q0 + AHEAD, TILES))
                for q in tl.static_range(q0, min(q0 + AHEAD, TILES)):
                    dh = dot(x[q - q0], kept[q], dh, PRECISION)
        else:
            terms = tl.where(back > 0, 4 * H, 0)
            dh = products(later_row, onward, weight, n, exist, dh, terms, H, 4 * H, BK, PRECISION)
        place = ((b * time + t) * H)[:, None] + n[None, :]
        gate_place = gate_row[:, None] + n[None, :]
        _, _, _, _, dc = _tile(
            dh,
            dc,
            c_before,
            gates + gate_place,
            grad_gates + gate_place,
            c + place,
            tile_at(grad_h, b, t - first, grad_h_b, grad_h_t, n, GRAD_H_UNIT),
            tile_at(grad_c, b, t - first, grad_c_b, grad_c_t, n, GRAD_C_UNIT),
            tile,
            counter,
            H,
            ACTIVATED,
        )
        reset_at = tile_at(grad_reset_c, b, t - first, grad_reset_b, grad_reset_t, n, GRAD_RESET_UNIT)
        dc = cut(dc, restart, reset_at, tile)
    tl.store(incoming_c + own, dc, mask=tile)


@triton.jit(do_not_specialize=_NUMBERS)
def lstm_backward_resident(
    gates,
    weight,
    c0,
    mask,
    reset_c,
    c,
    grad_h,
    grad_c,
    incoming_h,
    incoming_c,
    grad_gates,
    grad_reset_c,
    batch: tl.int32,
    time: tl.int32,
    first: tl.int32,
    span: tl.int32,
    start: tl.int32,
    stop: tl.int32,
    mask_b: tl.int64,
    mask_t: tl.int64,
    reset_c_b: tl.int64,
    reset_c_t: tl.int64,
    grad_h_b: tl.int64,
    grad_h_t: tl.int64,
    grad_c_b: tl.int64,
    grad_c_t: tl.int64,
    grad_reset_b: tl.int64,
    grad_reset_t: tl.int64,
    H: tl.constexpr,
    BB: tl.constexpr,
    BN: tl.constexpr,
    RESET_C_UNIT: tl.constexpr,
    GRAD_H_UNIT: tl.constexpr,
    GRAD_C_UNIT: tl.constexpr,
    GRAD_RESET_UNIT: tl.constexpr,
    ACTIVATED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """All steps and columns (BN >= H); nothing that was written is read back, so no barrier is needed."""
    b, rows = rows_of(batch, BB, 0)
    n = tl.arange(0, BN)
    exist = within(n, H, BN)
    tile = rows[:, None] & exist[None, :]
    # One tile for each gate.
    both = exist[:, None] & exist[None, :]
    w = weight + n[:, None] * H + n[None, :]
    w_i = tl.load(w, mask=both, other=0.0)
    w_f = tl.load(w + H * H, mask=both, other=0.0)
    w_g = tl.load(w + 2 * H * H, mask=both, other=0.0)
    w_o = tl.load(w + 3 * H * H, mask=both, other=0.0)
    own = b[:, None] * H + n[None, :]
    dh = tl.load(incoming_h + own, mask=tile, other=0.0)
    dc = tl.load(incoming_c + own, mask=tile, other=0.0)
    for back in range(stop - start):
        t = stop - 1 - back
        restart = restarts(mask, b, t, rows, mask_b, mask_t)
        c_reset = row_at(reset_c, b, t, reset_c_b, reset_c_t, RESET_C_UNIT)
        c_before = state_tile(previous(c0, c, b, t, time, H), c_reset, n, rows & ~restart, restart, exist, "")
        place = ((b * time + t) * H)[:, None] + n[None, :]
        gate_place = ((b * span + (t - first)) * (4 * H))[:, None] + n[None, :]
        d_i, d_f, d_g, d_o, dc = _tile(
            dh,
            dc,
            c_before,
            gates + gate_place,
            grad_gates + gate_place,
            c + place,
            tile_at(grad_h, b, t - first, grad_h_b, grad_h_t, n, GRAD_H_UNIT),
            tile_at(grad_c, b, t - first, grad_c_b, grad_c_t, n, GRAD_C_UNIT),
            tile,
            None,
            H,
            ACTIVATED,
        )
        reset_at = tile_at(grad_reset_c, b, t - first, grad_reset_b, grad_reset_t, n, GRAD_RESET_UNIT)
        dc = cut(dc, restart, reset_at, tile)
        # The gradient of the h before the step, d_gates W_hh.
        dh = dot(d_i, w_i, tl.zeros_like(dc), PRECISION)
        dh = dot(d_f, w_f, dh, PRECISION)
        dh = dot(d_g, w_g, dh, PRECISION)
        dh = dot(d_o, w_o, dh, PRECISION)
        dh = tl.where(restart[:, None], 0.0, dh)
    tl.store(incoming_c + own, dc, mask=tile)
