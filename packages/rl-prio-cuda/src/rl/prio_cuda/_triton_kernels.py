"""The kernels of the Triton twin: one thread a query, one lane a node, no exchange between lanes.

Nothing relies on an order of programs. See docs/internals/prio-cuda.md.

The workspace: error (3 int64), the worst entry of this call (int64), then the plan (int64: 16 places of levels, 16
counts of children), then an int32 stamp for each leaf.
"""
# mypy: ignore-errors
# pyright: basic, reportArgumentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportReturnType=false, reportOptionalMemberAccess=false, reportInvalidTypeForm=false
# ruff: noqa: ANN001, ANN202, N803, PLR0913, PLR0917, SIM108, FBT003

import triton
import triton.language as tl

from rl.prio_cuda._triton_nodes import (
    as_doubles,
    double,
    doubles,
    load8,
    longs,
    of_block,
    of_node,
    pick8,
    pick16,
    power,
    put,
    reals_of,
)

__all__ = ["PLAN", "STAMPS", "above", "check_leaves", "elect", "get", "level", "sample", "write"]

PLAN = 32
STAMPS = 32 + 2 * 16 * 8

_PLAN = tl.constexpr(PLAN // 8)
_STAMPS = tl.constexpr(STAMPS)
_WORST = tl.constexpr(3)
_MOST = tl.constexpr(2**63 - 1)
_INDEX, _PRIORITY, _EMPTY = tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
_OVERFLOW, _UNIFORM, _DAMAGED = tl.constexpr(4), tl.constexpr(5), tl.constexpr(6)
_MOST_F32 = tl.constexpr(3.4028234663852886e38 * 0.999999)
_MOST_F64 = tl.constexpr(1.7976931348623157e308 * 0.999999)


@triton.jit
def _report(work, code, place, value):
    """Leave an error, unless one waits to be read."""
    error = longs(work)
    if tl.atomic_cas(error, tl.full((), 0, tl.int64), code.to(tl.int64)) == 0:
        tl.store(error + 1, place.to(tl.int64))
        tl.store(error + 2, value.to(tl.float64).to(tl.int64, bitcast=True))


@triton.jit
def _refuse(work, code, place):
    """Remember the worst entry of this call: the one of the smallest code, then of the smallest place."""
    key = tl.where(code > 0, _MOST - ((code.to(tl.int64) << 56) | place), 0)
    worst = tl.max(key, 0)
    if worst > 0:
        tl.atomic_max(longs(work) + _WORST, worst)


@triton.jit
def _children(index, at, count, full, shift, Q: tl.constexpr):
    """Which children are made again: all, or those above the indices; and how many of these lanes count."""
    item = at + tl.arange(0, Q)
    mask = item < count
    if full:
        child = item
    else:
        child = tl.load(index + item, mask=mask, other=0) >> shift
    return child, mask


@triton.jit
def _given(value, place, mask, eps, alpha, FROM_ERRORS: tl.constexpr, WIDE: tl.constexpr):
    """What is at `place`, the priority that it makes in float64, and whether it is one."""
    given = tl.load(value + place, mask=mask, other=0)
    if FROM_ERRORS:
        size = tl.abs(given)
        priority = power(size.to(tl.float64) + double(eps), double(alpha))
        sound = (priority <= (_MOST_F64 if WIDE else _MOST_F32)) & (size < float("inf"))
    else:
        priority = given.to(tl.float64)
        sound = (given >= 0) & (given < float("inf"))
    return given, priority, sound


@triton.jit(do_not_specialize=["n", "step", "rows", "eps", "alpha"])
def elect(
    work,
    index,
    value,
    n,
    step,
    rows,
    eps: tl.int64,
    alpha: tl.int64,
    FROM_ERRORS: tl.constexpr,
    WIDE: tl.constexpr,
    Q: tl.constexpr,
):
    """Look at every entry; of each leaf, remember the last one."""
    place = tl.program_id(0).to(tl.int64) * Q + tl.arange(0, Q)
    mask = place < n
    i = tl.load(index + place, mask=mask, other=0)
    outside = (i < 0) | (i >= rows)
    _, _, sound = _given(value, place * step, mask, eps, alpha, FROM_ERRORS, WIDE)
    code = tl.where(outside, _INDEX, tl.where(sound, 0, _PRIORITY))
    _refuse(work, tl.where(mask, code, 0), tl.where(outside, place, place * step))
    stamp = (work + _STAMPS).to(tl.pointer_type(tl.int32))
    tl.atomic_max(stamp + i, (place + 1).to(tl.int32), mask=mask & (code != _INDEX))


@triton.jit(do_not_specialize=["leaves", "n", "step", "rows", "eps", "alpha"])
def write(
    tree,
    work,
    index,
    value,
    raw,
    largest,
    leaves,
    n,
    step,
    rows,
    eps: tl.int64,
    alpha: tl.int64,
    FROM_ERRORS: tl.constexpr,
    RAW: tl.constexpr,
    LARGEST: tl.constexpr,
    WIDE: tl.constexpr,
    Q: tl.constexpr,
):
    """The last one of each leaf writes it, if all entries are sound."""
    place = tl.program_id(0).to(tl.int64) * Q + tl.arange(0, Q)
    mask = place < n
    i = tl.load(index + place, mask=mask, other=-1)
    stamp = (work + _STAMPS).to(tl.pointer_type(tl.int32)) + i
    mask = (i >= 0) & (i < rows)
    mine = mask & (tl.load(stamp, mask=mask, other=0) == (place + 1).to(tl.int32))
    tl.store(stamp, tl.zeros_like(place).to(tl.int32), mask=mine)
    sound = tl.load(longs(work) + _WORST + tl.zeros_like(place)) == 0
    given, priority, _ = _given(value, place * step, mask, eps, alpha, FROM_ERRORS, WIDE)
    reals = reals_of(tree, WIDE) + leaves // (8 if WIDE else 4)
    tl.store(reals + i, priority.to(given.dtype), mask=mine & sound)
    if RAW:
        tl.store(raw + i, given, mask=mine & sound)
    if LARGEST:
        most = tl.max(tl.where(mask & sound, tl.abs(given), 0.0), 0)
        if WIDE:
            tl.atomic_max(longs(largest), most.to(tl.int64, bitcast=True))
        else:  # the bits of numbers that are not negative are ordered as they are
            tl.atomic_max(largest.to(tl.pointer_type(tl.int32)), most.to(tl.int32, bitcast=True))


@triton.jit(do_not_specialize=["leaves", "capacity", "padded"])
def check_leaves(tree, work, leaves, capacity, padded, WIDE: tl.constexpr, Q: tl.constexpr):
    """Look at every leaf."""
    place = tl.program_id(0).to(tl.int64) * Q + tl.arange(0, Q)
    mask = place < padded
    x = tl.load(reals_of(tree, WIDE) + leaves // (8 if WIDE else 4) + place, mask=mask, other=0)
    sound = (x >= 0) & (x < float("inf"))
    code = tl.where(place < capacity, tl.where(sound, 0, _PRIORITY), tl.where(x == 0, 0, _DAMAGED))
    _refuse(work, tl.where(mask, code, 0), place)


@triton.jit(do_not_specialize=["leaves", "n", "height"])
def level(
    tree, work, index, leaves, n, height, BOTTOM: tl.constexpr, FULL: tl.constexpr, WIDE: tl.constexpr, Q: tl.constexpr
):
    """Make a level again: all of it, or what lies above the indices."""
    if tl.load(longs(work) + _WORST) == 0:
        plan = longs(work) + _PLAN
        at = tl.load(plan + height)
        start = tl.program_id(0).to(tl.int64) * Q
        child, mask = _children(index, start, n, FULL, 4 + 3 * height, Q)
        if BOTTOM:
            total, low, high = of_block(tree, leaves, child, mask, WIDE)
        else:
            total, low, high = of_node(tree, tl.load(plan + height - 1), child, mask, WIDE)
        put(tree, at, child, total, low, high, mask, WIDE)


@triton.jit
def _climb(tree, work, index, leaves, n, most, height, BOTTOM: tl.constexpr, WIDE: tl.constexpr, Q: tl.constexpr):
    """One level, by one program alone."""
    plan = longs(work) + _PLAN
    at, below = tl.load(plan + height), tl.load(plan + 16 + height)
    count = below if most >= below else n + below * 0
    full = below + tl.zeros((Q,), tl.int64) <= most
    shift = 4 + 3 * height
    for start in range(0, count, Q):
        item = start + tl.arange(0, Q).to(tl.int64)
        mask = item < count
        above = tl.load(index + item, mask=mask & ~full, other=0) >> shift
        child = tl.where(full, item, above)
        if BOTTOM:
            total, low, high = of_block(tree, leaves, child, mask, WIDE)
        else:
            total, low, high = of_node(tree, tl.load(plan + height - 1), child, mask, WIDE)
        put(tree, at, child, total, low, high, mask, WIDE)
    tl.debug_barrier()  # what was written is read by other lanes next


@triton.jit(do_not_specialize=["leaves", "n", "most", "step", "first", "levels"])
def above(
    tree,
    work,
    index,
    value,
    leaves,
    n,
    most,
    step,
    first,
    levels,
    BOTTOM: tl.constexpr,
    WIDE: tl.constexpr,
    Q: tl.constexpr,
):
    """The levels from `first` up and the head, by one program; then report what was refused, and forget it."""
    worst = tl.load(longs(work) + _WORST)
    if worst == 0:
        if BOTTOM:
            _climb(tree, work, index, leaves, n, most, 0, True, WIDE, Q)
        for height in range(first, levels):
            _climb(tree, work, index, leaves, n, most, height, False, WIDE, Q)
        lane = tl.arange(0, 1)
        root = tl.load(longs(work) + _PLAN + levels - 1)
        total, low, high = of_node(tree, root, lane, lane == 0, WIDE)
        head = doubles(tree)
        tl.store(head + 3 + lane, total)
        tl.store(head + 4 + lane, low.to(tl.float64))
        tl.store(head + 5 + lane, high.to(tl.float64))
    else:
        key = _MOST - worst
        code, place = key >> 56, key & ((1 << 56) - 1)
        if code == _INDEX:
            _report(work, code, place, tl.load(index + place).to(tl.float64))
        else:
            _report(work, code, place, tl.load(value + place * step).to(tl.float64))
        tl.debug_barrier()  # all lanes have read it
        tl.store(longs(work) + _WORST, tl.full((), 0, tl.int64))


@triton.jit(do_not_specialize=["leaves", "n", "levels", "beta"])
def sample(
    tree,
    work,
    u,
    index,
    found,
    leaves,
    n,
    levels,
    beta: tl.int64,
    STRATIFIED: tl.constexpr,
    WEIGHTED: tl.constexpr,
    WIDE: tl.constexpr,
    Q: tl.constexpr,
):
    """A draw for each `u`, and its weight or priority."""
    place = tl.program_id(0).to(tl.int64) * Q + tl.arange(0, Q)
    mask = place < n
    head, plan = doubles(tree), longs(work) + _PLAN
    total = tl.load(head + 3 + tl.zeros_like(place))
    least = tl.load(head + 4)
    mark = tl.load(u + place, mask=mask, other=0.0)
    inside = (mark >= 0) & (mark < 1)
    drawable = (total > 0) & (total < float("inf"))
    if STRATIFIED:
        r = (mark + place.to(tl.float64)) * (total / (n + tl.zeros((), tl.int64)).to(tl.float64))
    else:
        r = mark * total
    node = tl.zeros_like(place)
    for height in range(levels):
        at = tl.load(plan + levels - 1 - height) // 8
        x = load8(head + at + node * (24 if WIDE else 16), mask)
        child, r = pick8(x, r)
        node = node * 8 + child
    block = reals_of(tree, WIDE) + leaves // (8 if WIDE else 4) + node * 16
    child, priority = pick16(as_doubles(load8(block, mask)), as_doubles(load8(block + 8, mask)), r)
    if WEIGHTED:
        out = power(priority / least, -double(beta))
    else:
        out = priority
    good = inside & drawable
    tl.store(index + place, tl.where(good, node * 16 + child, 0), mask=mask)
    tl.store(found + place, tl.where(good, out, 0.0).to(found.dtype.element_ty), mask=mask)
    everything = tl.load(head + 3)
    if not (everything > 0):
        _report(work, tl.full((), _EMPTY, tl.int64), tl.full((), 0, tl.int64), everything)
    elif everything == float("inf"):
        _report(work, tl.full((), _OVERFLOW, tl.int64), tl.full((), 0, tl.int64), everything)
    bad = tl.min(tl.where(mask & ~inside, place, _MOST), 0)
    if bad < _MOST:
        _report(work, tl.full((), _UNIFORM, tl.int64), bad, tl.load(u + bad))


@triton.jit(do_not_specialize=["leaves", "n", "capacity"])
def get(tree, work, index, out, leaves, n, capacity, WIDE: tl.constexpr, Q: tl.constexpr):
    """Priorities at indices; zero where there is no leaf."""
    place = tl.program_id(0).to(tl.int64) * Q + tl.arange(0, Q)
    mask = place < n
    i = tl.load(index + place, mask=mask, other=0)
    outside = (i < 0) | (i >= capacity)
    x = tl.load(reals_of(tree, WIDE) + leaves // (8 if WIDE else 4) + i, mask=mask & ~outside, other=0)
    tl.store(out + place, x, mask=mask)
    bad = tl.min(tl.where(mask & outside, place, _MOST), 0)
    if bad < _MOST:
        _report(work, tl.full((), _INDEX, tl.int64), bad, tl.load(index + bad).to(tl.float64))
