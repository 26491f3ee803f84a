"""Backward pass of the GRU in Triton, structured like `lstm_backward`.

The gradient of h before a step has a direct part, through ``z h`` (`direct`), and one through the gates,
``[d_r, d_z, d_m] W_hh``. `gates` has the slots n, r, z, m; `weight` has r, z, n as in torch. n is called `new`.
"""
# mypy: ignore-errors
# pyright: basic, reportArgumentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportReturnType=false, reportOptionalMemberAccess=false, reportInvalidTypeForm=false
# ruff: noqa: ANN001, ANN202, N803, N806, PLR0913, PLR0917

import triton
import triton.language as tl

from rl.recurrent_triton._kernels.tiles import (
    announce,
    await_others,
    counter_of,
    cut,
    dot,
    gru_gradients,
    keep_rows,
    load_gate,
    previous,
    products,
    restarts,
    row_at,
    rows_of,
    sigmoid,
    state_tile,
    states_ahead,
    tanh,
    tile_at,
    within,
)

_NUMBERS = ["batch", "time", "first", "span", "start", "stop", "mask_b", "mask_t", "reset_h_b", "reset_h_t"]
_NUMBERS += ["grad_h_b", "grad_h_t", "direct_b", "direct_t"]


@triton.jit
def _tile(
    dh,
    h_before,
    gates_at,
    grad_gates_at,
    grad_h_at,
    tile,
    counter,
    H: tl.constexpr,
    ACTIVATED: tl.constexpr,
):
    """Finish a tile of one step: add this step's gradient to `dh`, write those of the four slots.

    Returns:
        The gradients of r, z, m, and the direct part of that of the state before the step.
    """
    LIKE: tl.constexpr = dh.dtype
    new, r = load_gate(gates_at, tile, LIKE), load_gate(gates_at + H, tile, LIKE)
    z, m = load_gate(gates_at + 2 * H, tile, LIKE), load_gate(gates_at + 3 * H, tile, LIKE)
    if not ACTIVATED:
        r, z = sigmoid(r), sigmoid(z)
        new = tanh(new + r * m)
    if grad_h_at is not None:
        dh += tl.load(grad_h_at, mask=tile, other=0.0).to(LIKE)
    d_new, d_r, d_z, d_m, dh = gru_gradients(new, r, z, m, h_before, dh)
    # `grad_gates` may be `gates`: all threads have read m before one writes its gradient, which does not depend on it.
    tl.debug_barrier()
    kind = grad_gates_at.dtype.element_ty
    tl.store(grad_gates_at, d_new.to(kind), mask=tile)
    tl.store(grad_gates_at + H, d_r.to(kind), mask=tile)
    tl.store(grad_gates_at + 2 * H, d_z.to(kind), mask=tile)
    tl.store(grad_gates_at + 3 * H, d_m.to(kind), mask=tile)
    if counter is not None:
        announce(counter)
    return d_r, d_z, d_m, dh


@triton.jit(do_not_specialize=["tile0", *_NUMBERS])
def gru_backward_group(
    counters,
    tile0: tl.int32,
    gates,
    weight,
    h0,
    mask,
    reset_h,
    h,
    grad_h,
    incoming,
    grad_gates,
    direct,
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
    grad_h_b: tl.int64,
    grad_h_t: tl.int64,
    direct_b: tl.int64,
    direct_t: tl.int64,
    H: tl.constexpr,
    BB: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    AHEAD: tl.constexpr,
    RESET_H_UNIT: tl.constexpr,
    GRAD_H_UNIT: tl.constexpr,
    DIRECT_UNIT: tl.constexpr,
    ACTIVATED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """All steps; a program keeps the direct part and, if AHEAD, its weights, and reads the others' gates."""
    TILES: tl.constexpr = (3 * H + BK - 1) // BK
    b, rows = rows_of(batch, BB, tile0)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    exist = within(n, H, BN)
    tile = rows[:, None] & exist[None, :]
    counter, programs = counter_of(counters, tile0), tl.num_programs(1)
    if AHEAD:
        kept = keep_rows(weight, n, H, 3 * H, BK, BN)
    own = b[:, None] * H + n[None, :]
    dh = tl.load(incoming + own, mask=tile, other=0.0)
    for back in range(stop - start):
        t = stop - 1 - back
        restart = restarts(mask, b, t, rows, mask_b, mask_t)
        later = rows & (back > 0)
        onward = later & ~restarts(mask, b, t + 1, later, mask_b, mask_t)
        h_reset = row_at(reset_h, b, t, reset_h_b, reset_h_t, RESET_H_UNIT)
        h_before = state_tile(previous(h0, h, b, t, time, H), h_reset, n, rows & ~restart, restart, exist, "")
        gate_row = (b * span + (t - first)) * (4 * H)
        await_others(counter, back * programs)
        later_row = grad_gates + gate_row + 5 * H  # slots r, z, m of the step after
        if AHEAD:
            for q0 in tl.static_range(0, TILES, AHEAD):
                x = states_ahead(later_row, None, onward, restart, 3 * H, BK, q0, min(q0 + AHEAD, TILES))
                for q in tl.static_range(q0, min(q0 + AHEAD, TILES)):
                    dh = dot(x[q - q0], kept[q], dh, PRECISION)
        else:
            terms = tl.where(back > 0, 3 * H, 0)
            dh = products(later_row, onward, weight, n, exist, dh, terms, H, 3 * H, BK, PRECISION)
        place = gate_row[:, None] + n[None, :]
        grad_h_at = tile_at(grad_h, b, t - first, grad_h_b, grad_h_t, n, GRAD_H_UNIT)
        _, _, _, dh = _tile(dh, h_before, gates + place, grad_gates + place, grad_h_at, tile, counter, H, ACTIVATED)
        dh = cut(dh, restart, tile_at(direct, b, t - first, direct_b, direct_t, n, DIRECT_UNIT), tile)
    tl.store(incoming + own, dh, mask=tile)


@triton.jit(do_not_specialize=_NUMBERS)
def gru_backward_resident(
    gates,
    weight,
    h0,
    mask,
    reset_h,
    h,
    grad_h,
    incoming,
    grad_gates,
    direct,
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
    grad_h_b: tl.int64,
    grad_h_t: tl.int64,
    direct_b: tl.int64,
    direct_t: tl.int64,
    H: tl.constexpr,
    BB: tl.constexpr,
    BN: tl.constexpr,
    RESET_H_UNIT: tl.constexpr,
    GRAD_H_UNIT: tl.constexpr,
    DIRECT_UNIT: tl.constexpr,
    ACTIVATED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """All steps and columns (BN >= H); nothing that was written is read back."""
    b, rows = rows_of(batch, BB, 0)
    n = tl.arange(0, BN)
    exist = within(n, H, BN)
    tile = rows[:, None] & exist[None, :]
    # One tile for each gate.
    both = exist[:, None] & exist[None, :]
    w = weight + n[:, None] * H + n[None, :]
    w_r = tl.load(w, mask=both, other=0.0)
    w_z = tl.load(w + H * H, mask=both, other=0.0)
    w_m = tl.load(w + 2 * H * H, mask=both, other=0.0)
    own = b[:, None] * H + n[None, :]
    dh = tl.load(incoming + own, mask=tile, other=0.0)
    direct_now = dh
    for back in range(stop - start):
        t = stop - 1 - back
        restart = restarts(mask, b, t, rows, mask_b, mask_t)
        h_reset = row_at(reset_h, b, t, reset_h_b, reset_h_t, RESET_H_UNIT)
        h_before = state_tile(previous(h0, h, b, t, time, H), h_reset, n, rows & ~restart, restart, exist, "")
        place = ((b * span + (t - first)) * (4 * H))[:, None] + n[None, :]
        grad_h_at = tile_at(grad_h, b, t - first, grad_h_b, grad_h_t, n, GRAD_H_UNIT)
        d_r, d_z, d_m, dh = _tile(dh, h_before, gates + place, grad_gates + place, grad_h_at, tile, None, H, ACTIVATED)
        direct_now = cut(dh, restart, tile_at(direct, b, t - first, direct_b, direct_t, n, DIRECT_UNIT), tile)
        dh = dot(d_r, w_r, direct_now, PRECISION)
        dh = dot(d_z, w_z, dh, PRECISION)
        dh = dot(d_m, w_m, dh, PRECISION)
        dh = tl.where(restart[:, None], 0.0, dh)
    tl.store(incoming + own, direct_now, mask=tile)
