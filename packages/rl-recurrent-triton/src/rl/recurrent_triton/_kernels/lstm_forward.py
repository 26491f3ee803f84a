"""Forward pass of the LSTM in Triton. `tiles` defines names and sizes, `_launch` the arguments.

Each step computes ``i, f, o = sigmoid`` and ``g = tanh`` of ``W_ih x + b + W_hh h``, then ``c = f c + i g`` and
``h = o tanh(c)``. On entry `gates` holds ``W_ih x + b`` of all steps; if KEEP, the activated gates replace it.

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
    dot,
    keep_columns,
    load_gates,
    lstm_after,
    previous,
    reset_to,
    restarts,
    row_at,
    rows_of,
    state_tile,
    states_ahead,
    store_gates,
    within,
)

_NUMBERS = ["batch", "time", "first", "span", "start", "stop", "mask_b", "mask_t", "reset_h_b", "reset_h_t"]
_NUMBERS += ["reset_c_b", "reset_c_t"]


@triton.jit
def _tile(sums, c_before, gates_at, h_at, c_at, tile, counter, H: tl.constexpr, KEEP: tl.constexpr):
    """Finish a tile of one step from the sums before the activations: write h, c and the gates, return h and c.

    In a group, h is announced as soon as it is written: the others wait for nothing else.
    """
    i, f, g, o = activate(sums[0], sums[1], sums[2], sums[3])
    h, c = lstm_after(i, f, g, o, c_before)
    tl.store(h_at, h.to(h_at.dtype.element_ty), mask=tile)
    if counter is not None:
        announce(counter)
    tl.store(c_at, c.to(c_at.dtype.element_ty), mask=tile)
    if KEEP:
        store_gates(gates_at, tile, i, f, g, o, H)
    return h, c


@triton.jit
def _products(
    sums,
    before,
    reset,
    going,
    restart,
    weight,
    n,
    exist,
    H: tl.constexpr,
    BK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Add to `sums` the products of the states before a step and the weights of columns `n`, which are read here."""
    i, f, g, o = sums
    for k0 in range(0, H, BK):
        k = k0 + tl.arange(0, BK)
        there = within(k, H, BK)
        x = state_tile(before, reset, k, going, restart, there, ".cg")
        w = weight + n[None, :] * H + k[:, None]
        both = there[:, None] & exist[None, :]
        i = dot(x, tl.load(w, mask=both, other=0.0), i, PRECISION)
        f = dot(x, tl.load(w + H * H, mask=both, other=0.0), f, PRECISION)
        g = dot(x, tl.load(w + 2 * H * H, mask=both, other=0.0), g, PRECISION)
        o = dot(x, tl.load(w + 3 * H * H, mask=both, other=0.0), o, PRECISION)
    return i, f, g, o


@triton.jit(do_not_specialize=["tile0", *_NUMBERS])
def lstm_forward_group(
    counters,
    tile0: tl.int32,
    gates,
    weight,
    h0,
    c0,
    mask,
    reset_h,
    reset_c,
    h,
    c,
    batch: tl.int32,
    time: tl.int32,
    first: tl.int32,
    span: tl.int32,
    start: tl.int32,
    stop: tl.int32,
    mask_b: tl.int64,
    mask_t: tl.int64,
    reset_h_b: tl.int64,
    reset_h_t: tl.int64,
    reset_c_b: tl.int64,
    reset_c_t: tl.int64,
    H: tl.constexpr,
    BB: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    AHEAD: tl.constexpr,
    RESET_H_UNIT: tl.constexpr,
    RESET_C_UNIT: tl.constexpr,
    KEEP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """All steps; a program keeps the c and, if AHEAD, the weights of its columns, and reads the others' h."""
    TILES: tl.constexpr = (H + BK - 1) // BK
    b, rows = rows_of(batch, BB, tile0)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    exist = within(n, H, BN)
    tile = rows[:, None] & exist[None, :]
    counter, programs = counter_of(counters, tile0), tl.num_programs(1)
    if AHEAD:
        kept = keep_columns(weight, n, H, BK, 4, BN)
    c_now = tl.load(previous(c0, c, b, start, time, H)[:, None] + n[None, :], mask=tile, other=0.0)
    for t in range(start, stop):
        restart = restarts(mask, b, t, rows, mask_b, mask_t)
        going = rows & ~restart
        h_before = previous(h0, h, b, t, time, H)
        h_reset = row_at(reset_h, b, t, reset_h_b, reset_h_t, RESET_H_UNIT)
        gates_at = gates + ((b * span + (t - first)) * (4 * H))[:, None] + n[None, :]
        sums = load_gates(gates_at, tile, H, h.dtype.element_ty)  # W_ih x + b
        c_reset = row_at(reset_c, b, t, reset_c_b, reset_c_t, RESET_C_UNIT)
        c_now = reset_to(c_now, c_reset, n, restart, tile)
        # This program's own values are read by now; the first step waits for no other program (the count is 0).
        await_others(counter, (t - start) * programs)
        if AHEAD:  # add W_hh h, the pieces of h in groups of AHEAD loads
            i, f, g, o = sums
            for q0 in tl.static_range(0, TILES, AHEAD):
                x = states_ahead(h_before, h_reset, going, restart, H, BK, q0, min(q0 + AHEAD, TILES))
                for q in tl.static_range(q0, min(q0 + AHEAD, TILES)):
                    i = dot(x[q - q0], kept[4 * q], i, PRECISION)
                    f = dot(x[q - q0], kept[4 * q + 1], f, PRECISION)
                    g = dot(x[q - q0], kept[4 * q + 2], g, PRECISION)
                    o = dot(x[q - q0], kept[4 * q + 3], o, PRECISION)
            sums = (i, f, g, o)
        else:
            sums = _products(sums, h_before, h_reset, going, restart, weight, n, exist, H, BK, PRECISION)
        place = ((b * time + t) * H)[:, None] + n[None, :]
        _, c_now = _tile(sums, c_now, gates_at, h + place, c + place, tile, counter, H, KEEP)


@triton.jit(do_not_specialize=_NUMBERS)
def lstm_forward_resident(
    gates,
    weight,
    h0,
    c0,
    mask,
    reset_h,
    reset_c,
    h,
    c,
    batch: tl.int32,
    time: tl.int32,
    first: tl.int32,
    span: tl.int32,
    start: tl.int32,
    stop: tl.int32,
    mask_b: tl.int64,
    mask_t: tl.int64,
    reset_h_b: tl.int64,
    reset_h_t: tl.int64,
    reset_c_b: tl.int64,
    reset_c_t: tl.int64,
    H: tl.constexpr,
    BB: tl.constexpr,
    BN: tl.constexpr,
    RESET_H_UNIT: tl.constexpr,
    RESET_C_UNIT: tl.constexpr,
    KEEP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """All steps and columns (BN >= H); nothing that was written is read back, so no barrier is needed."""
    b, rows = rows_of(batch, BB, 0)
    n = tl.arange(0, BN)
    exist = within(n, H, BN)
    tile = rows[:, None] & exist[None, :]
    kept = keep_columns(weight, n, H, BN, 4, BN)
    h_now = tl.load(previous(h0, h, b, start, time, H)[:, None] + n[None, :], mask=tile, other=0.0)
    c_now = tl.load(previous(c0, c, b, start, time, H)[:, None] + n[None, :], mask=tile, other=0.0)
    for t in range(start, stop):
        restart = restarts(mask, b, t, rows, mask_b, mask_t)
        h_reset = row_at(reset_h, b, t, reset_h_b, reset_h_t, RESET_H_UNIT)
        c_reset = row_at(reset_c, b, t, reset_c_b, reset_c_t, RESET_C_UNIT)
        h_now = reset_to(h_now, h_reset, n, restart, tile)
        c_now = reset_to(c_now, c_reset, n, restart, tile)
        gates_at = gates + ((b * span + (t - first)) * (4 * H))[:, None] + n[None, :]
        i, f, g, o = load_gates(gates_at, tile, H, h.dtype.element_ty)
        i = dot(h_now, kept[0], i, PRECISION)
        f = dot(h_now, kept[1], f, PRECISION)
        g = dot(h_now, kept[2], g, PRECISION)
        o = dot(h_now, kept[3], o, PRECISION)
        place = ((b * time + t) * H)[:, None] + n[None, :]
        h_now, c_now = _tile((i, f, g, o), c_now, gates_at, h + place, c + place, tile, None, H, KEEP)
