"""Tiles in Triton, shared by both cells: loads of states and weights, products, and synchronization of programs.

Names and sizes in all kernels:

- `b` (int64 [BB]) and `n` ([BN]): rows of the batch and columns of the hidden size of a program's tile. `rows`, `exist`
  and `tile` are masks of the rows, the columns and the elements that exist.
- `k` ([BK]): a piece of the terms of a matrix product.
- `restart`: rows whose state is reset before the step; `going`: rows whose state comes from the step before. In the
  backward pass `onward`: rows whose state goes on to the step after.
- `x_at`: addresses of a tile of the tensor x; `x_reset`: addresses of the rows of stored states.

H, BB, BN, BK are known when a kernel is compiled; the batch and the steps are not, so that no other batch or length
compiles again.
"""

import triton
import triton.language as tl

# mypy: ignore-errors
# pyright: basic, reportArgumentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportReturnType=false, reportOptionalMemberAccess=false, reportInvalidTypeForm=false
# ruff: noqa: ANN001, ANN202, N803, PLR0913, PLR0917, RUF005, SIM108


COUNTER_STRIDE: int = 32  # int32 between two counters: each on a cache line of its own
_COUNTER_STRIDE = tl.constexpr(COUNTER_STRIDE)
_INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def rows_of(batch, BB: tl.constexpr, tile0):
    """Return the rows of this program's tile of the batch, and which of them exist; the launch begins at `tile0`."""
    b = (tile0 + tl.program_id(0)) * BB + tl.arange(0, BB)
    return b.to(tl.int64), b < batch


@triton.jit
def within(k, H: tl.constexpr, STEP: tl.constexpr):
    """Return which of the columns `k` exist; known to be all of them where STEP divides H."""
    if H % STEP == 0:
        exist = tl.full(k.shape, 1, tl.int1)
    else:
        exist = k < H
    return exist


@triton.jit
def restarts(mask, b, t, rows, mask_b, mask_t):
    """Return which rows are reset before step `t`; never one that does not exist."""
    if mask is None:
        found = b < 0
    else:
        found = tl.load(mask + b * mask_b + t * mask_t, mask=rows, other=0).to(tl.int1)
    return found


@triton.jit
def previous(first, after, b, t, time, H: tl.constexpr):
    """Return the address of each row's state before step `t`: in `first` [B, H], or in `after` [B, time, H]."""
    return tl.where(b * 0 + t == 0, first + b * H, after + (b * time + t - 1) * H)


@triton.jit
def row_at(base, b, t, b_stride, t_stride, UNIT: tl.constexpr):
    """Return the addresses of rows of a strided tensor; strides are multiples of UNIT, which tells the alignment."""
    if base is None:
        at = None
    else:
        at = base + (b * b_stride + t * t_stride) * UNIT
    return at


@triton.jit
def tile_at(base, b, t, b_stride, t_stride, n, UNIT: tl.constexpr):
    """Return the addresses of a tile of a strided tensor."""
    if base is None:
        at = None
    else:
        at = row_at(base, b, t, b_stride, t_stride, UNIT)[:, None] + n[None, :]
    return at


@triton.jit
def state_tile(before, reset, k, going, restart, exist, CACHE: tl.constexpr):
    """Load columns `k` of the states before a step: from `before` where `going`, from `reset` where `restart`, else 0.

    CACHE is ".cg" where other programs wrote `before` in this very launch: the first-level cache knows nothing of them.
    """
    if reset is None:
        x = tl.load(before[:, None] + k[None, :], mask=going[:, None] & exist[None, :], other=0.0, cache_modifier=CACHE)
    elif reset.dtype == before.dtype:
        # One load, from the address of each row's state.
        at = tl.where(restart, reset, before)
        there = (going | restart)[:, None] & exist[None, :]
        x = tl.load(at[:, None] + k[None, :], mask=there, other=0.0, cache_modifier=CACHE)
    else:
        x = tl.load(before[:, None] + k[None, :], mask=going[:, None] & exist[None, :], other=0.0, cache_modifier=CACHE)
        given = tl.load(reset[:, None] + k[None, :], mask=restart[:, None] & exist[None, :], other=0.0)
        x = tl.where(restart[:, None], given.to(x.dtype), x)
    return x


@triton.jit
def states_ahead(before, reset, going, restart, H: tl.constexpr, BK: tl.constexpr, Q: tl.constexpr, STOP: tl.constexpr):
    """Load columns Q * BK to STOP * BK with `state_tile`, past the first-level cache; returns a tuple of tiles.

    All loads are under way before the first product waits for one: a product is a barrier that loads do not pass.
    """
    tiles = ()
    for q in tl.static_range(Q, STOP):
        k = q * BK + tl.arange(0, BK)
        tiles = tiles + (state_tile(before, reset, k, going, restart, within(k, H, BK), ".cg"),)
    return tiles


@triton.jit
def reset_to(now, reset_at, n, restart, tile):
    """Replace rows of a state that a program keeps, `now`, by those at `reset_at` (or 0) where they restart."""
    now = tl.where(restart[:, None], 0.0, now)
    if reset_at is not None:
        now += tl.load(reset_at[:, None] + n[None, :], mask=tile & restart[:, None], other=0.0).to(now.dtype)
    return now


@triton.jit
def cut(grad, restart, reset_at, tile):
    """Remove the rows that restart from the gradient of a state; store these at `reset_at` if it is not None."""
    if reset_at is not None:
        tl.store(reset_at, tl.where(restart[:, None], grad, 0.0).to(reset_at.dtype.element_ty), mask=tile)
    return tl.where(restart[:, None], 0.0, grad)


@triton.jit
def load_gate(at, tile, LIKE: tl.constexpr):
    return tl.load(at, mask=tile, other=0.0).to(LIKE)


@triton.jit
def keep_columns(weight, n, H: tl.constexpr, BK: tl.constexpr, SLOTS: tl.constexpr, BN: tl.constexpr):
    """Load the weights of columns `n` of each gate, for products with a state: tiles [BK, BN] by piece k, then gate.

    A matrix [SLOTS * H, H] is read transposed: element (k, n) of gate s is ``weight[s * H + n, k]``. Tiles end in
    shared memory. The barriers, once a launch, bound what the assembler reads into registers first: without them the
    LSTM at H = 256 takes 168 registers instead of 152. Nothing spilled without them where that was tried.
    """
    kept = ()
    for q in tl.static_range((H + BK - 1) // BK):
        k = q * BK + tl.arange(0, BK)
        exist = within(k, H, BK)[:, None] & within(n, H, BN)[None, :]
        for s in tl.static_range(SLOTS):
            at = weight + (s * H + n)[None, :] * H + k[:, None]
            kept = kept + (tl.load(at, mask=exist, other=0.0),)
        tl.debug_barrier()
    return kept


@triton.jit
def keep_rows(weight, n, H: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr):
    """Load the weights of columns `n`, for products with gradients of gates: tiles [BK, BN] of the matrix [K, H].

    The barriers are there for the reason given in `keep_columns`.
    """
    kept = ()
    for q in tl.static_range((K + BK - 1) // BK):
        k = q * BK + tl.arange(0, BK)
        exist = within(k, K, BK)[:, None] & within(n, H, BN)[None, :]
        kept = kept + (tl.load(weight + k[:, None] * H + n[None, :], mask=exist, other=0.0),)
        if q % 4 == 3:
            tl.debug_barrier()
    return kept


@triton.jit
def dot(x, w, total, PRECISION: tl.constexpr):
    """Compute ``total + x @ w``, with `x` rounded to the dtype of `w`."""
    x = x.to(w.dtype)
    if _INTERPRETED:  # the interpreter would multiply the bits of a bfloat16
        x, w = x.to(total.dtype), w.to(total.dtype)
    return tl.dot(x, w, total, input_precision=PRECISION, out_dtype=total.dtype)


@triton.jit
def products(
    x_at,
    onward,
    weight,
    n,
    exist,
    total,
    terms,
    H: tl.constexpr,
    K: tl.constexpr,
    BK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute ``total + x @ w``: the first `terms` of K terms, rows `onward` of `x`, columns `n` of `w` [K, H].

    Other programs wrote `x` in this very launch, so it is read past the first-level cache.
    """
    for k0 in range(0, terms, BK):
        k = k0 + tl.arange(0, BK)
        there = within(k, K, BK)
        x = state_tile(x_at, None, k, onward, onward, there, ".cg")
        w = tl.load(weight + k[:, None] * H + n[None, :], mask=there[:, None] & exist[None, :], other=0.0)
        total = dot(x, w, total, PRECISION)
    return total


@triton.jit
def await_others(counter, count):
    """Wait until the programs of this batch tile have announced `count` tiles.

    One thread reads the counter with acquire order at the scope of the device; the barrier hands that on to the other
    threads of the program. So what was written before the announcements can be read now. The read with acquire order
    empties the first-level cache, too; that reads after it go past that cache is a second line, and does not hold for
    copies to shared memory of less than 16 bytes a thread.
    """
    while tl.atomic_add(counter, 0, sem="acquire", scope="gpu") < count:
        pass
    tl.debug_barrier()


@triton.jit
def announce(counter):
    """Announce that this program's tile of the step is written.

    The barrier stands between the writes of all threads and the one thread that counts with release order.
    """
    tl.debug_barrier()
    tl.atomic_add(counter, 1, sem="release", scope="gpu")


@triton.jit
def counter_of(counters, tile0):
    """Return the counter of this program's batch tile."""
    return counters + (tile0 + tl.program_id(0)) * _COUNTER_STRIDE


# mypy: ignore-errors
# pyright: basic, reportArgumentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportReturnType=false, reportOptionalMemberAccess=false, reportInvalidTypeForm=false
# ruff: noqa: ANN001, ANN202


@triton.jit
def sigmoid(x):
    """Compute ``1 / (1 + exp(-x))``; the exponent is never positive, so that nothing overflows."""
    e = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, e) / (1.0 + e)


@triton.jit
def tanh(x):
    """Compute tanh from one exponential whose exponent is never positive: the interpreter has no tanh."""
    e = tl.exp(-2.0 * tl.abs(x))
    y = (1.0 - e) / (1.0 + e)
    return tl.where(x < 0, -y, y)


@triton.jit
def lstm_after(i, f, g, o, c_before):
    """Compute the states h and c after a step, from the activated gates: ``c = f c + i g``, ``h = o tanh(c)``."""
    c = f * c_before + i * g
    return o * tanh(c), c


@triton.jit
def lstm_gradients(i, f, g, o, c_before, c, dh, dc):
    """Compute the gradients of the four sums before the activations, and that of the c before the step.

    `dh` and `dc` are the gradients of the states after the step. ``x (1 - x)`` is the derivative of the sigmoid and
    ``1 - x^2`` that of tanh, as functions of the result.
    """
    bounded = tanh(c)
    dc += dh * o * (1.0 - bounded * bounded)  # through h = o tanh(c)
    d_i = dc * g * i * (1.0 - i)
    d_f = dc * c_before * f * (1.0 - f)
    d_g = dc * i * (1.0 - g * g)
    d_o = dh * bounded * o * (1.0 - o)
    return d_i, d_f, d_g, d_o, dc * f


@triton.jit
def gru_after(n, z, h_before):
    """Compute the state after a step, from the activated gates: ``h = (1 - z) n + z h``."""
    return n + z * (h_before - n)


@triton.jit
def gru_gradients(n, r, z, m, h_before, dh):
    """Compute the gradients of n, r, z before the activations, of m, and of the state before, through z only.

    `dh` is the gradient of the state after the step; the rest of that of the state before comes through r, z and m, by
    a product with the weights.
    """
    d_n = dh * (1.0 - z) * (1.0 - n * n)
    d_r = d_n * m * r * (1.0 - r)
    d_z = dh * (h_before - n) * z * (1.0 - z)
    return d_n, d_r, d_z, d_n * r, dh * z


# mypy: ignore-errors
# pyright: basic, reportArgumentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportReturnType=false, reportOptionalMemberAccess=false, reportInvalidTypeForm=false
# ruff: noqa: ANN001, ANN202, N803


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
