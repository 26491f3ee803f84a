"""What a node and a block of leaves can be asked, in Triton: in lanes, one for each query or node.

Sums are associated as in rl-native, written out one by one, so that both make the same bytes. Where a condition meets
lanes it is computed in lanes: the interpreter mistypes a single one that is spread over them.
"""
# mypy: ignore-errors
# pyright: basic, reportArgumentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportReturnType=false, reportOptionalMemberAccess=false, reportInvalidTypeForm=false
# ruff: noqa: ANN001, ANN202, N803, SIM108

import triton
import triton.language as tl

__all__ = [
    "as_doubles",
    "double",
    "doubles",
    "least_of",
    "load8",
    "longs",
    "most_of",
    "nearest",
    "of_block",
    "of_node",
    "pick8",
    "pick16",
    "power",
    "put",
    "reals_of",
    "scan8",
    "sum8",
]


@triton.jit
def doubles(pointer):
    return pointer.to(tl.pointer_type(tl.float64))


@triton.jit
def longs(pointer):
    return pointer.to(tl.pointer_type(tl.int64))


@triton.jit
def reals_of(pointer, WIDE: tl.constexpr):
    if WIDE:
        reals = pointer.to(tl.pointer_type(tl.float64))
    else:
        reals = pointer.to(tl.pointer_type(tl.float32))
    return reals


@triton.jit
def double(bits):
    """A float64 that came as the bits of it: plain numbers come as float32."""
    return bits.to(tl.int64).to(tl.float64, bitcast=True)


@triton.jit
def power(base, exponent):
    """``base ** exponent`` for base >= 0, float64; exact for exponent 1."""
    exponent = exponent + tl.zeros_like(base)
    safe = tl.where(base > 0, base, 1.0)
    y = tl.exp2(exponent * tl.log2(safe))
    y = tl.where(base > 0, y, tl.where(exponent == 0, 1.0, 0.0))
    y = tl.where(exponent < 0, tl.where(base > 0, y, float("inf")), y)
    return tl.where(exponent == 1, base, y)


@triton.jit
def load8(at, mask):
    return (
        tl.load(at, mask=mask, other=0),
        tl.load(at + 1, mask=mask, other=0),
        tl.load(at + 2, mask=mask, other=0),
        tl.load(at + 3, mask=mask, other=0),
        tl.load(at + 4, mask=mask, other=0),
        tl.load(at + 5, mask=mask, other=0),
        tl.load(at + 6, mask=mask, other=0),
        tl.load(at + 7, mask=mask, other=0),
    )


@triton.jit
def as_doubles(x):
    return (
        x[0].to(tl.float64),
        x[1].to(tl.float64),
        x[2].to(tl.float64),
        x[3].to(tl.float64),
        x[4].to(tl.float64),
        x[5].to(tl.float64),
        x[6].to(tl.float64),
        x[7].to(tl.float64),
    )


@triton.jit
def sum8(x):
    return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]))


@triton.jit
def scan8(x):
    """Running sums, in three doubling steps."""
    a1, a2, a3, a4 = x[1] + x[0], x[2] + x[1], x[3] + x[2], x[4] + x[3]
    a5, a6, a7 = x[5] + x[4], x[6] + x[5], x[7] + x[6]
    b2, b3 = a2 + x[0], a3 + a1
    b4, b5, b6, b7 = a4 + a2, a5 + a3, a6 + a4, a7 + a5
    return x[0], a1, b2, b3, b4 + x[0], b5 + a1, b6 + b2, b7 + b3


@triton.jit
def nearest(x, k, COUNT: tl.constexpr):
    """The last child above zero up to `k`, else the first one behind it, else 0."""
    at = tl.zeros_like(k) - 1
    after = tl.zeros_like(k) + COUNT
    for i in tl.static_range(COUNT):
        at = tl.where((x[i] > 0) & (k >= i), i, at)
        after = tl.where((x[i] > 0) & (k < i) & (after == COUNT), i, after)
    return tl.where(at >= 0, at, tl.where(after < COUNT, after, 0))


@triton.jit
def pick8(x, r):
    """The child that holds `r`, and what is left of it there. Where rounding led to an empty child, its neighbour."""
    ends = scan8(x)
    k = tl.zeros(r.shape, tl.int32)
    for i in tl.static_range(8):
        k = tl.where(ends[i] <= r, i + 1, k)
    j = nearest(x, k, 8)
    rest = tl.where(k == 0, r, x[0])
    for i in tl.static_range(1, 8):
        rest = tl.where(j == i, tl.where(k == i, r - ends[i - 1], x[i]), rest)
    return j, rest


@triton.jit
def pick16(low, high, r):
    """The leaf that holds `r`, and its priority as float64."""
    first, second = scan8(low), scan8(high)
    k = tl.zeros(r.shape, tl.int32)
    for i in tl.static_range(8):
        k = tl.where(first[i] <= r, i + 1, k)
    for i in tl.static_range(8):
        k = tl.where(second[i] + first[7] <= r, i + 9, k)
    x = low + high
    j = nearest(x, k, 16)
    found = x[0]
    for i in tl.static_range(1, 16):
        found = tl.where(j == i, x[i], found)
    return j, found


@triton.jit
def least_of(x, low):
    for i in tl.static_range(8):
        low = tl.minimum(low, tl.where(x[i] > 0, x[i], float("inf")))
    return low


@triton.jit
def most_of(x, high):
    for i in tl.static_range(8):
        high = tl.maximum(high, x[i])
    return high


@triton.jit
def put(tree, at, child, total, low, high, mask, WIDE: tl.constexpr):
    """Write what is known of `child` into its parent, at level `at`."""
    node, j = child >> 3, child & 7
    reals = reals_of(tree, WIDE)
    if WIDE:
        tl.store(doubles(tree) + at // 8 + node * 24 + j, total, mask=mask)
        tl.store(reals + at // 8 + node * 24 + 8 + j, low, mask=mask)
        tl.store(reals + at // 8 + node * 24 + 16 + j, high, mask=mask)
    else:
        tl.store(doubles(tree) + at // 8 + node * 16 + j, total, mask=mask)
        tl.store(reals + at // 4 + node * 32 + 16 + j, low, mask=mask)
        tl.store(reals + at // 4 + node * 32 + 24 + j, high, mask=mask)


@triton.jit
def of_block(tree, leaves, block, mask, WIDE: tl.constexpr):
    at = reals_of(tree, WIDE) + leaves // (8 if WIDE else 4) + block * 16
    low, high = load8(at, mask), load8(at + 8, mask)
    a, b = as_doubles(low), as_doubles(high)
    total = sum8(
        (a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3], a[4] + b[4], a[5] + b[5], a[6] + b[6], a[7] + b[7])
    )
    least = least_of(high, least_of(low, tl.where(low[0] > 0, low[0], float("inf"))))
    return total, least, most_of(high, most_of(low, low[0]))


@triton.jit
def of_node(tree, at, node, mask, WIDE: tl.constexpr):
    reals = reals_of(tree, WIDE)
    if WIDE:
        here = reals + at // 8 + node * 24
        total, low, high = sum8(load8(here, mask)), load8(here + 8, mask), load8(here + 16, mask)
    else:
        total = sum8(load8(doubles(tree) + at // 8 + node * 16, mask))
        here = reals + at // 4 + node * 32
        low, high = load8(here + 16, mask), load8(here + 24, mask)
    return total, least_of(low, tl.where(low[0] > 0, low[0], float("inf"))), most_of(high, high[0])
