"""Forward pass of the GRU in Triton, structured like `lstm_forward`.

Each step computes ``r, z = sigmoid(W_ih x + b + W_hh h)``, ``m = W_hn h + b_hn``, ``n = tanh(W_in x + b_in + r m)`` and
``h = (1 - z) n + z h``. `gates` has the slots n, r, z, m (without m if not KEEP), with the projections of the inputs on
entry and the activated gates after it; `weight` has r, z, n as in torch. n is called `new`, as `n` is a column.
"""
# mypy: ignore-errors
# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportReturnType=false, reportOptionalMemberAccess=false, reportInvalidTypeForm=false
# ruff: noqa: ANN001, ANN202, N803, N806, PLR0913, PLR0917

import triton
import triton.language as tl

from rl.recurrent_triton._kernels.tiles import (
    announce,
    await_others,
    counter_of,
    dot,
    gru_after,
    keep_columns,
    load_gate,
    previous,
    reset_to,
    restarts,
    row_at,
    rows_of,
    sigmoid,
    state_tile,
    states_ahead,
    tanh,
    within,
)

_NUMBERS = ["batch", "time", "first", "span", "start", "stop", "mask_b", "mask_t", "reset_h_b", "reset_h_t"]


@triton.jit
def _load_sums(at, bias_n, n, exist, tile, H: tl.constexpr, LIKE: tl.constexpr):
    """Load the projections of the inputs for n, r and z, and the bias of m."""
    r, z = load_gate(at + H, tile, LIKE), load_gate(at + 2 * H, tile, LIKE)
    m = tl.zeros_like(r)
    if bias_n is not None:
        m += tl.load(bias_n + n, mask=exist, other=0.0).to(LIKE)[None, :]
    return load_gate(at, tile, LIKE), r, z, m


@triton.jit
def _tile(new, r, z, m, h_before, gates_at, h_at, tile, counter, H: tl.constexpr, KEEP: tl.constexpr):
    """Finish a tile of one step from the sums before the activations: write h and the gates, return h.

    In a group, h is announced as soon as it is written: the others wait for nothing else.
    """
    r, z = sigmoid(r), sigmoid(z)
    new = tanh(new + r * m)
    h = gru_after(new, z, h_before)
    tl.store(h_at, h.to(h_at.dtype.element_ty), mask=tile)
    if counter is not None:
        announce(counter)
    if KEEP:
        kind = gates_at.dtype.element_ty
        tl.store(gates_at, new.to(kind), mask=tile)
        tl.store(gates_at + H, r.to(kind), mask=tile)
        tl.store(gates_at + 2 * H, z.to(kind), mask=tile)
        tl.store(gates_at + 3 * H, m.to(kind), mask=tile)
    return h


@triton.jit
def _products(
    r,
    z,
    m,
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
    """Add to r, z, m the products of the states before a step and the weights of columns `n`, which are read here."""
    for k0 in range(0, H, BK):
        k = k0 + tl.arange(0, BK)
        there = within(k, H, BK)
        x = state_tile(before, reset, k, going, restart, there, ".cg")
        w = weight + n[None, :] * H + k[:, None]
        both = there[:, None] & exist[None, :]
        r = dot(x, tl.load(w, mask=both, other=0.0), r, PRECISION)
        z = dot(x, tl.load(w + H * H, mask=both, other=0.0), z, PRECISION)
        m = dot(x, tl.load(w + 2 * H * H, mask=both, other=0.0), m, PRECISION)
    return r, z, m


@triton.jit(do_not_specialize=["tile0", *_NUMBERS])
def gru_forward_group(
    counters,
    tile0: tl.int32,
    gates,
    weight,
    bias_n,
    h0,
    mask,
    reset_h,
    h,
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
    H: tl.constexpr,
    BB: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    AHEAD: tl.constexpr,
    RESET_H_UNIT: tl.constexpr,
    KEEP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """All steps; a program keeps the h and, if AHEAD, the weights of its columns, and reads the others' h."""
    SLOTS: tl.constexpr = 4 if KEEP else 3
    TILES: tl.constexpr = (H + BK - 1) // BK
    b, rows = rows_of(batch, BB, tile0)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    exist = within(n, H, BN)
    tile = rows[:, None] & exist[None, :]
    counter, programs = counter_of(counters, tile0), tl.num_programs(1)
    if AHEAD:
        kept = keep_columns(weight, n, H, BK, 3, BN)
    h_now = tl.load(previous(h0, h, b, start, time, H)[:, None] + n[None, :], mask=tile, other=0.0)
    for t in range(start, stop):
        restart = restarts(mask, b, t, rows, mask_b, mask_t)
        going = rows & ~restart
        h_before = previous(h0, h, b, t, time, H)
        h_reset = row_at(reset_h, b, t, reset_h_b, reset_h_t, RESET_H_UNIT)
        gates_at = gates + ((b * span + (t - first)) * (SLOTS * H))[:, None] + n[None, :]
        new, r, z, m = _load_sums(gates_at, bias_n, n, exist, tile, H, h.dtype.element_ty)
        h_now = reset_to(h_now, h_reset, n, restart, tile)
        # This program's own values are read by now; the first step waits for no other program (the count is 0).
        await_others(counter, (t - start) * programs)
        if AHEAD:  # add W_hh h, the pieces of h in groups of AHEAD loads
            for q0 in tl.static_range(0, TILES, AHEAD):
                x = states_ahead(h_before, h_reset, going, restart, H, BK, q0, min(q0 + AHEAD, TILES))
                for q in tl.static_range(q0, min(q0 + AHEAD, TILES)):
                    r = dot(x[q - q0], kept[3 * q], r, PRECISION)
                    z = dot(x[q - q0], kept[3 * q + 1], z, PRECISION)
                    m = dot(x[q - q0], kept[3 * q + 2], m, PRECISION)
        else:
            r, z, m = _products(r, z, m, h_before, h_reset, going, restart, weight, n, exist, H, BK, PRECISION)
        h_at = h + ((b * time + t) * H)[:, None] + n[None, :]
        h_now = _tile(new, r, z, m, h_now, gates_at, h_at, tile, counter, H, KEEP)


@triton.jit(do_not_specialize=_NUMBERS)
def gru_forward_resident(
    gates,
    weight,
    bias_n,
    h0,
    mask,
    reset_h,
    h,
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
    H: tl.constexpr,
    BB: tl.constexpr,
    BN: tl.constexpr,
    RESET_H_UNIT: tl.constexpr,
    KEEP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """All steps and columns (BN >= H); nothing that was written is read back, so no barrier is needed."""
    SLOTS: tl.constexpr = 4 if KEEP else 3
    b, rows = rows_of(batch, BB, 0)
    n = tl.arange(0, BN)
    exist = within(n, H, BN)
    tile = rows[:, None] & exist[None, :]
    kept = keep_columns(weight, n, H, BN, 3, BN)
    h_now = tl.load(previous(h0, h, b, start, time, H)[:, None] + n[None, :], mask=tile, other=0.0)
    for t in range(start, stop):
        restart = restarts(mask, b, t, rows, mask_b, mask_t)
        h_reset = row_at(reset_h, b, t, reset_h_b, reset_h_t, RESET_H_UNIT)
        h_now = reset_to(h_now, h_reset, n, restart, tile)
        gates_at = gates + ((b * span + (t - first)) * (SLOTS * H))[:, None] + n[None, :]
        new, r, z, m = _load_sums(gates_at, bias_n, n, exist, tile, H, h.dtype.element_ty)
        r = dot(h_now, kept[0], r, PRECISION)
        z = dot(h_now, kept[1], z, PRECISION)
        m = dot(h_now, kept[2], m, PRECISION)
        h_at = h + ((b * time + t) * H)[:, None] + n[None, :]
        h_now = _tile(new, r, z, m, h_now, gates_at, h_at, tile, None, H, KEEP)
