"""The tree against a plain array, closed forms, and the pitfalls of priority trees."""

import itertools
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode

from rl.core.errors import ArgumentError
from rl.native import NativePriorityTree

# each instruction set of this processor is tested; the package chooses the widest
from rl.native._library import ISAS, use_isa
from rl.testing import check_priority_tree

_ops = torch.ops.rl_native

DTYPES = [torch.float32, torch.float64]
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
CAPACITIES = [1, 15, 16, 17, 127, 128, 129, 1000, 1024, 1025]


@pytest.fixture(params=ISAS)
def isa(request):
    """Every instruction set of this processor; one that it lacks is the widest below it."""
    yield use_isa(request.param)
    use_isa(None)


def _tree(priority):
    tree = NativePriorityTree(len(priority), dtype=priority.dtype)
    tree.update(torch.arange(len(priority)), priority)
    return tree


def _rng(seed=0):
    return torch.Generator().manual_seed(seed)


def test_the_tree_conforms_to_the_protocol(isa):
    check_priority_tree(lambda capacity, dtype: NativePriorityTree(capacity, dtype=dtype))


@each_dtype
def test_every_instruction_set_gives_the_same_bytes_and_samples(dtype):
    seen = []
    for name in ISAS:
        use_isa(name)
        tree = NativePriorityTree(5000, dtype=dtype)
        for seed in range(5):
            index = torch.randint(0, 5000, (1500,), generator=_rng(seed))
            tree.update_from_errors(index, torch.randn(1500, generator=_rng(seed), dtype=dtype), 1e-6, 0.6)
        index, weight = tree.sample_weighted(4000, 0.4, generator=_rng(1))
        seen.append((tree.buffer.clone(), index, weight))
    use_isa(None)
    for (a, i, w), (b, j, v) in itertools.pairwise(seen):
        assert torch.equal(a, b)
        assert torch.equal(i, j)
        assert torch.equal(w, v)


@each_dtype
@pytest.mark.parametrize("rows", [2000, 100_003, 300_001])
def test_small_batches_give_the_bytes_of_a_rebuilt_tree(isa, dtype, rows):
    tree = _tree(torch.rand(rows, generator=_rng(), dtype=dtype))
    for seed in range(60):
        n = (1, 3, 31, 32, 300, 700)[seed % 6]
        if seed % 4 == 3:  # neighbours
            index = (torch.arange(n) + 131 * seed) % rows
        else:  # many of them twice, and such as hold extremes of their nodes
            index = torch.randint(0, rows if seed % 2 else 500, (n,), generator=_rng(seed))
        priority = torch.rand(n, generator=_rng(seed), dtype=dtype)
        priority[:: 3 + seed % 5] = (0.0, 1e-6, 1e6)[seed % 3]
        tree.update(index, priority)
        whole = NativePriorityTree.from_buffer(tree.buffer.clone(), rebuild=True)
        assert torch.equal(whole.buffer, tree.buffer)


_priority = st.one_of(st.just(0.0), st.floats(2.0**-100, 2.0**100, width=32), st.floats(0, 2, width=32))
_batch = st.lists(st.tuples(st.integers(0, 10**9), _priority), max_size=40)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(CAPACITIES), st.sampled_from(DTYPES), st.sampled_from(ISAS), st.lists(_batch, max_size=6))
def test_any_sequence_of_updates_equals_a_plain_array(capacity, dtype, isa, batches):
    use_isa(isa)
    tree, array = NativePriorityTree(capacity, dtype=dtype), [0.0] * capacity
    for batch in batches:
        index = [i % capacity for i, _ in batch]
        tree.update(torch.tensor(index, dtype=torch.int64), torch.tensor([p for _, p in batch], dtype=dtype))
        for i, (_, p) in zip(index, batch, strict=True):
            array[i] = p
        assert tree.get(torch.arange(capacity)).tolist() == array
        assert tree.total().item() == pytest.approx(math.fsum(array), rel=1e-13)
        positive = [p for p in array if p > 0]
        assert tree.max().item() == max(array)
        assert tree.min().item() == min(positive, default=float("inf"))
        if positive:
            u = torch.tensor([0, 0.25, 0.5, 1 - 2**-53], dtype=torch.float64)
            index, drawn = tree.sample(4, u=u)
            assert all(array[i] > 0 for i in index.tolist())
            assert drawn.tolist() == [array[i] for i in index.tolist()]
    use_isa(None)


@each_dtype
def test_samples_from_given_u_follow_the_inverse_distribution(isa, dtype):
    priority = torch.rand(3000, generator=_rng(), dtype=dtype)
    u = torch.rand(20000, generator=_rng(1), dtype=torch.float64)
    ends = priority.double().cumsum(0)
    index, drawn = _tree(priority).sample(len(u), u=u)
    assert torch.equal(drawn, priority[index])
    mass = u * ends[-1]
    slack = 1e-12 * ends[-1]
    assert (mass <= ends[index] + slack).all()
    assert (mass >= ends[index] - priority[index] - slack).all()


def test_zero_is_never_sampled_at_the_boundaries_of_leaves(isa):
    # Sums of integers are exact: every boundary is hit.
    priority = torch.randint(0, 3, (4096,), generator=_rng()).double()
    priority[[0, 1, 2, 15, 16, 127, 128, -1, -2, -17]] = 0
    tree = _tree(priority)
    total = priority.sum()
    u = priority.cumsum(0)[:-1] / total
    u = torch.cat([u, torch.nextafter(u, u * 0), torch.nextafter(u, u * 0 + 1), torch.tensor([1 - 2**-53])])
    u = u[u < 1]
    for stratified in (False, True):
        index, drawn = tree.sample(len(u), u=u, stratified=stratified)
        assert (drawn > 0).all()
        assert torch.equal(drawn, priority[index])


@each_dtype
def test_a_batch_of_any_size_equals_its_parts(isa, dtype):
    # Large enough for the pipelined levels; integers, whose sums are exact.
    priority = torch.randint(0, 3, (300_000,), generator=_rng()).to(dtype)
    tree, u = _tree(priority), torch.rand(3000, generator=_rng(1), dtype=torch.float64)
    parts = torch.cat([tree.sample(5, u=part)[0] for part in u.split(5)])
    for n in (1, 7, 8, 9, 31, 32, 33, 63, 64, 65, 95, 97, 128, 129, 160, 161, 500, 1025, 2999, 3000):
        index, drawn = tree.sample(n, u=u[:n])
        assert torch.equal(index, parts[:n]), n
        assert torch.equal(drawn, priority[index]), n
        weight = tree.sample_weighted(n, 0.5, generator=_rng(n))[1]
        assert torch.equal(weight == 1, tree.sample(n, generator=_rng(n))[1] == 1), n


@each_dtype
def test_totals_near_the_limits_of_the_dtype_can_be_sampled(isa, dtype):
    for scale in (1e-38, 1e37) if dtype is torch.float32 else (1e-300, 1e300):
        tree = _tree(torch.full((1000,), scale, dtype=dtype))
        index, weight = tree.sample_weighted(20_000, 1.0, generator=_rng())
        assert index.bincount(minlength=1000).min() > 0
        assert torch.equal(weight, torch.ones(20_000, dtype=dtype))


@each_dtype
def test_minus_zero_is_zero(isa, dtype):
    priority = torch.tensor([-0.0, 1.0] * 500, dtype=dtype)
    tree = _tree(priority)
    assert tree.total().item() == 500
    assert tree.min().item() == 1
    for n in (30, 300, 30_000):
        assert (tree.sample(n, generator=_rng())[0] % 2 == 1).all()


def test_minus_zero_leaves_the_same_bytes_as_zero(isa):
    for dtype, rows in ((torch.float32, 1000), (torch.float64, 40)):
        plain, minus, loaded = (NativePriorityTree(rows, dtype=dtype) for _ in range(3))
        minus.update(torch.arange(rows), torch.tensor(-0.0, dtype=dtype))
        minus.update(torch.tensor([3]), torch.tensor([-0.0]))
        loaded.load_state_dict({"priority": torch.full((rows,), -0.0, dtype=dtype)})
        plain.load_state_dict({"priority": torch.zeros(rows, dtype=dtype)})
        for tree in (minus, loaded):
            assert torch.equal(tree.buffer, plain.buffer)


@pytest.mark.parametrize("stratified", [False, True])
@pytest.mark.parametrize("rows", [10, 3000])
def test_the_smallest_numbers_of_float64_are_sampled_in_proportion(isa, rows, stratified):
    step = 5e-324
    priority = (torch.arange(rows) % 4).double() * step
    count = _tree(priority).sample(200_000, generator=_rng(), stratified=stratified)[0].bincount(minlength=rows)
    expected = 200_000 * (torch.arange(rows) % 4) / (torch.arange(rows) % 4).sum()
    assert (count[expected == 0] == 0).all()
    off = (count - expected)[expected > 0] / expected[expected > 0].sqrt()
    assert off.abs().max() < 5.5


def _chi_square(rows, draws, dtype=torch.float32):
    tree = _tree(torch.ones(rows, dtype=dtype))
    counts = torch.zeros(rows)
    generator = _rng(5)
    for _ in range(draws // 10**6):
        counts += torch.bincount(tree.sample(10**6, generator=generator)[0], minlength=rows)
    drawn = draws // 10**6 * 10**6
    statistic = ((counts.double() - drawn / rows) ** 2 * rows / drawn).sum().item()
    return (statistic - (rows - 1)) / (2 * (rows - 1)) ** 0.5


@pytest.mark.parametrize(
    "rows",
    [10**5, pytest.param(10**6, marks=pytest.mark.slow), pytest.param(4 * 10**6, marks=pytest.mark.slow)],
)
def test_equal_priorities_are_sampled_uniformly(rows):
    # A grid of 24 bits, as a float32 uniform has, fails this by 8 and 60 standard deviations for the larger ones.
    assert abs(_chi_square(rows, 4 * 10**6 if rows == 10**5 else 2 * 10**7)) < 5


def test_stratified_samples_take_one_of_each_part():
    tree = _tree(torch.ones(1000))
    assert torch.equal(tree.sample(1000, generator=_rng(), stratified=True)[0], torch.arange(1000))


@each_dtype
def test_sums_do_not_drift_over_twelve_decades(dtype):
    generator, rows = _rng(), 1000
    tree = NativePriorityTree(rows, dtype=dtype)
    for _ in range(2000):
        index = torch.randint(0, rows, (10_000,), generator=generator)
        tree.update(index, (10 ** (12 * torch.rand(10_000, generator=generator) - 6)).to(dtype))
    tree.update(torch.arange(rows), torch.tensor(1e-6, dtype=dtype))
    assert tree.total().item() == pytest.approx(rows * torch.tensor(1e-6, dtype=dtype).item(), rel=1e-15)


@pytest.mark.parametrize("capacity", [2**k for k in (0, 4, 7, 10, 13)])
def test_a_capacity_that_is_a_power_of_two_uses_its_last_leaf(capacity):
    tree = NativePriorityTree(capacity)
    tree.update(torch.tensor([capacity - 1]), torch.tensor([2.0]))
    assert tree.sample(5)[0].tolist() == [capacity - 1] * 5
    with pytest.raises(IndexError):
        tree.update(torch.tensor([capacity]), torch.tensor([2.0]))


def test_the_minimum_ignores_empty_and_zero_leaves():
    tree = NativePriorityTree(1000)
    tree.update(torch.tensor([3, 900]), torch.tensor([5.0, 7.0]))
    assert tree.min().item() == 5
    tree.update(torch.tensor([3]), torch.tensor([0.0]))
    assert tree.min().item() == 7
    tree.update(torch.tensor([900]), torch.tensor([0.0]))
    assert tree.min().item() == float("inf")


@each_dtype
@pytest.mark.parametrize("alpha", [0, 0.3, 0.6, 1, 2.5])
def test_priorities_from_errors(isa, dtype, alpha):
    error = torch.randn(3000, generator=_rng(), dtype=dtype) * 10 ** torch.linspace(-8, 8, 3000, dtype=dtype)
    error[5] = 0
    for eps in (1e-8, 0.0, 0.5):
        tree = NativePriorityTree(3000, dtype=dtype)
        tree.update_from_errors(torch.arange(3000), error, eps, alpha)
        expected = (error.double().abs() + eps) ** alpha
        torch.testing.assert_close(
            tree.get(torch.arange(3000)).double(), expected, rtol=1e-7 if dtype == torch.float32 else 1e-12, atol=1e-38
        )


@each_dtype
def test_the_last_value_of_a_repeated_index_wins(isa, dtype):
    index = torch.randint(0, 50, (3000,), generator=_rng())
    error = torch.randn(3000, generator=_rng(1), dtype=dtype)
    raw, fused = NativePriorityTree(50, dtype=dtype), NativePriorityTree(50, dtype=dtype)
    raw.update(index, error.abs())
    fused.update_from_errors(index, error, 0.0, 1.0)
    last = {i: abs(e) for i, e in zip(index.tolist(), error.tolist(), strict=True)}
    for tree in (raw, fused):
        assert tree.get(torch.arange(50)).tolist() == [last[i] for i in range(50)]


_error = st.one_of(st.just(0.0), st.floats(-100, 100, width=32), st.sampled_from([float("nan"), float("-inf"), 1e30]))
_errors = st.lists(st.tuples(st.integers(-1, 40), _error), max_size=30)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(DTYPES),
    st.sampled_from(ISAS),
    st.integers(1, 40),
    st.integers(0, 45),
    st.lists(_errors, max_size=5),
)
def test_one_call_writes_priorities_raw_errors_and_the_largest_or_nothing(dtype, isa, capacity, rows, batches):
    use_isa(isa)
    tree = NativePriorityTree(capacity, dtype=dtype)
    raw, largest = torch.zeros(capacity, dtype=dtype), torch.ones((), dtype=dtype)
    array, written, most = [0.0] * capacity, [0.0] * capacity, 1.0
    for batch in batches:
        index = torch.tensor([i for i, _ in batch], dtype=torch.int64)
        error = torch.tensor([e for _, e in batch], dtype=dtype)
        outside = any(not 0 <= i < min(rows, capacity) for i in index.tolist())
        before = [x.clone() for x in (tree.buffer, raw, largest)]
        if outside or not ((error.abs() + 0.5) ** 2).isfinite().all():
            with pytest.raises(IndexError if outside else ValueError):
                tree.update_from_errors(index, error, 0.5, 2.0, raw=raw, largest=largest, rows=rows)
            assert all(torch.equal(a, b) for a, b in zip(before, (tree.buffer, raw, largest), strict=True))
            continue
        tree.update_from_errors(index, error, 0.5, 2.0, raw=raw, largest=largest, rows=rows)
        for i, e in zip(index.tolist(), error.tolist(), strict=True):
            array[i], most, written[i] = e, max(most, abs(e)), (abs(e) + 0.5) ** 2
        assert raw.tolist() == array
        assert largest.item() == most
        assert tree.get(torch.arange(capacity)).tolist() == pytest.approx(written, rel=1e-6)
    use_isa(None)


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
@each_dtype
def test_weights_are_those_of_schaul(isa, dtype, beta):
    priority = torch.rand(500, generator=_rng(), dtype=dtype) + 1e-3
    priority[::7] = 0
    tree = _tree(priority)
    index, weight = tree.sample_weighted(2000, beta, generator=_rng(2))
    assert torch.equal(index, tree.sample(2000, generator=_rng(2))[0])
    probability = priority.double() / priority.double().sum()
    each = (1 / (500 * probability[priority > 0])) ** beta
    expected = (1 / (500 * probability[index])) ** beta / each.max()
    torch.testing.assert_close(weight.double(), expected, rtol=1e-6 if dtype == torch.float32 else 1e-12, atol=0)
    assert weight.dtype == dtype


@pytest.mark.parametrize("td", [float("nan"), float("inf"), -float("inf"), 3e38])
def test_a_refused_error_writes_nothing(td):
    tree = _tree(torch.ones(300))
    before = tree.buffer.clone()
    error = torch.full((300,), 5.0)
    error[280] = td
    with pytest.raises(ValueError, match="position 280"):
        tree.update_from_errors(torch.arange(300), error, 1.0, 2.0)
    assert torch.equal(tree.buffer, before)


def _fused(tree, index, **beside):
    tree.update_from_errors(torch.tensor(index), torch.ones(len(index)), 0.0, 1.0, **beside)


def _op_errors(tree, raw=None, rows=10, index=10):
    _ops.tree_set_errors(tree.buffer, torch.tensor([index]), torch.ones(1), 0.0, 1.0, raw, None, rows)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda t: t.update(torch.tensor([0.0]), torch.ones(1)), ValueError, "int64"),
        (lambda t: t.update(torch.tensor([0, 10]), torch.ones(2)), IndexError, r"10 is outside \[0, 10\)"),
        (lambda t: t.update(torch.tensor([0]), torch.tensor([1e300], dtype=torch.float64)), ValueError, "finite"),
        (lambda t: t.update_from_errors(torch.tensor([0]), torch.ones(1), -1.0, 0.6), ValueError, "eps"),
        (lambda t: t.update_from_errors(torch.tensor([0]), torch.ones(1), 0.0, float("nan")), ValueError, "alpha"),
        (lambda t: _fused(t, [9], rows=9), IndexError, r"9 is outside \[0, 9\)"),
        (lambda t: _fused(t, [10], rows=99), IndexError, r"10 is outside \[0, 10\)"),
        (lambda t: _fused(t, [0], raw=torch.zeros(9)), ValueError, r"raw is \(9,\)"),
        (lambda t: _fused(t, [0], raw=torch.zeros(10, 1)), ValueError, r"raw is \(10, 1\)"),
        (lambda t: _fused(t, [0], raw=torch.zeros(20)[::2]), ValueError, "contiguous"),
        (lambda t: _fused(t, [0], raw=torch.zeros(10).double()), ValueError, "float64"),
        (lambda t: _fused(t, [0], largest=torch.zeros(1)), ValueError, r"largest is \(1,\)"),
        (lambda t: _fused(t, [0], largest=torch.zeros((), device="meta")), ValueError, "meta"),
        (lambda t: t.sample_weighted(3, -1.0), ValueError, "beta"),
        (lambda t: t.sample(-1), ValueError, "n is -1"),
        (lambda t: t.sample(1, u=torch.tensor([1.0])), ValueError, "u of 1.0"),
        (lambda t: t.sample(2, u=torch.tensor([0.5])), ValueError, r"\(2,\)"),
        (lambda t: t.get(torch.tensor([-1])), IndexError, "-1"),
        (
            lambda t: t.get(torch.tensor([1, 2], dtype=torch.int32)),
            ValueError,
            r"get: indices .*int64.* torch.int32",
        ),
        (lambda t: t.get(torch.zeros(3, dtype=torch.int64, device="meta")), ValueError, "get: .* CPU.* meta"),
        (lambda t: t.get([1]), ValueError, "get: indices are .* list"),
        (lambda t: t.update([1], [1.0]), ValueError, "update: indices are .* list"),
        (lambda t: t.update(torch.tensor([1]), 1.0), ValueError, "update: values are .* float"),
        (
            lambda t: _ops.tree_get(t.buffer, torch.tensor([1, 2], dtype=torch.int32), torch.float32),
            ValueError,
            "int32",
        ),
        (lambda t: _ops.tree_get(t.buffer, torch.tensor([1]), torch.float64), ValueError, "float64"),
        (lambda t: _ops.tree_set(t.buffer, torch.tensor([1, 2]), torch.ones(1)), ValueError, r"\(1,\)"),
        (lambda t: _ops.tree_set(t.buffer[:64], torch.tensor([1]), torch.ones(1)), ValueError, "no priority tree"),
        (lambda t: _op_errors(t, raw=torch.zeros(3)), ValueError, r"raw is \(3,\)"),
        (lambda t: _op_errors(t, rows=11), IndexError, r"10 is outside \[0, 10\)"),
        (lambda t: _fused(t, [0], rows=-5), ValueError, "rows is -5"),
        (lambda t: _fused(t, [2**63 - 1], rows=-5), ValueError, "rows is -5"),
        (lambda t: _fused(t, [0], rows=-(2**70)), ValueError, "rows is -1180"),
        (lambda t: _fused(t, [0], rows=2.5), ValueError, "rows is 2.5"),
        (lambda t: _op_errors(t, index=2**63 - 1, rows=-5), ValueError, "rows is -5"),
        (lambda t: _fused(t, [0], raw=[0.0] * 10), ValueError, "raw is a tensor, got a list"),
        (lambda t: t.update(torch.tensor([0]), torch.ones(1) * 1j), ValueError, "complex64"),
        (lambda t: t.sample(1, u=[0.5]), ValueError, "u is a list"),
        (lambda t: t.sample(2.5), ValueError, "n is 2.5"),
        (lambda t: t.sample_weighted("3", 0.4), ValueError, "n is '3'"),
        (lambda t: NativePriorityTree(0), ValueError, "at least 1"),
        (lambda t: NativePriorityTree(2.5), ValueError, "capacity is 2.5"),
        (lambda t: NativePriorityTree("3"), ValueError, "capacity is '3'"),
        (lambda t: NativePriorityTree(2**46), ValueError, "take .* TB"),
        (lambda t: NativePriorityTree(5, dtype=torch.float16), ValueError, "float16"),
    ],
)
def test_invalid_arguments_raise(call, error, says):
    tree = _tree(torch.ones(10))
    before = tree.buffer.clone()
    with pytest.raises(error, match=says):
        call(tree)
    assert torch.equal(tree.buffer, before)


def test_an_error_whose_power_is_infinite_is_named_with_that_power():
    tree = NativePriorityTree(4)
    with pytest.raises(ValueError, match=r"5.0.*\+ 0.5\) \*\* 1000.* position 1 .*nothing was written"):
        tree.update_from_errors(torch.tensor([0, 1]), torch.tensor([0.25, 5.0]), 0.5, 1000.0)


def test_a_refused_index_says_that_nothing_was_written():
    with pytest.raises(IndexError, match=r"index 9 is outside \[0, 4\) .*nothing was written"):
        NativePriorityTree(4).update(torch.tensor([9]), torch.ones(1))


def test_sampling_from_an_infinite_total_raises():
    tree = _tree(torch.full((20,), 1e308, dtype=torch.float64))
    with pytest.raises(ValueError, match="infinite"):
        tree.sample(1)


def test_non_contiguous_and_converted_arguments():
    tree = NativePriorityTree(10)
    tree.update(torch.arange(20)[::2][:5], torch.arange(10, dtype=torch.float64)[::2])
    assert tree.get(torch.arange(10)).tolist() == [0, 0, 2, 0, 4, 0, 6, 0, 8, 0]


def test_one_error_for_all_and_errors_with_a_gradient():
    tree, raw = NativePriorityTree(700), torch.zeros(700)
    tree.update_from_errors(torch.arange(600), torch.tensor(-4.0), 0.0, 0.5, raw=raw)
    assert tree.get(torch.arange(700)).tolist() == pytest.approx([2] * 600 + [0] * 100)
    assert raw.tolist() == [-4] * 600 + [0] * 100
    tree.update_from_errors(torch.tensor([3]), torch.ones(1).requires_grad_(), 0.0, 1.0, raw=raw)
    assert raw[3] == 1
    assert not raw.requires_grad


def test_another_default_device_changes_nothing():
    with torch.device("meta"):
        tree = NativePriorityTree(10)
        tree.update(torch.arange(10, device="cpu"), torch.ones(10, device="cpu"))
        for found in (*tree.sample(5), *tree.sample_weighted(5, 0.4), tree.get(torch.arange(3, device="cpu"))):
            assert found.device.type == "cpu"


def test_empty_samples_and_updates():
    tree = _tree(torch.ones(10))
    tree.update(torch.empty(0, dtype=torch.int64), torch.empty(0))
    assert tree.sample(0)[0].shape == (0,)
    assert tree.total().item() == 10


def test_threads_sample_the_same_as_one_thread():
    tree = _tree(torch.rand(1000, generator=_rng()))
    alone = [tree.sample(5000, generator=_rng(seed))[0] for seed in range(16)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda seed: tree.sample(5000, generator=_rng(seed))[0], range(16)))
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


def _without_memory(kind, like):
    if kind == "given back":
        gone = like.clone()
        gone.untyped_storage().resize_(0)
        return gone
    return torch._efficientzerotensor(like.shape, dtype=like.dtype)  # as autograd keeps zeros in mind


@pytest.mark.parametrize("kind", ["given back", "zeros"])
@pytest.mark.parametrize("which", [0, 1])
def test_a_tensor_without_memory_is_refused(isa, kind, which):
    tree = _tree(torch.ones(10))
    before, batch = tree.buffer.clone(), [torch.arange(2), torch.full((2,), 5.0)]
    batch[which] = _without_memory(kind, batch[which])
    for call in (lambda: tree.update(*batch), lambda: tree.update_from_errors(*batch, 0.0, 1.0)):
        with pytest.raises(ArgumentError, match=r"has no memory.*nothing was written"):
            call()
    with pytest.raises(ArgumentError, match="has no memory"):
        tree.get(_without_memory(kind, torch.arange(2)))
    with pytest.raises(ArgumentError, match="has no memory"):
        tree.sample(2, u=_without_memory(kind, torch.zeros(2, dtype=torch.float64)))
    assert torch.equal(tree.buffer, before)


@pytest.mark.filterwarnings("ignore:Accessing the data pointer")
def test_fake_tensors_are_rejected():
    tree = _tree(torch.ones(10))
    before = tree.buffer.clone()

    def write(priority):
        tree.update(torch.arange(2), priority)
        return priority

    with pytest.raises(ArgumentError, match="has no memory"):
        torch.func.functionalize(write)(torch.full((2,), 5.0))
    with FakeTensorMode(allow_non_fake_inputs=True):
        for call in (
            lambda: tree.update(torch.arange(2), torch.ones(2)),
            lambda: tree.sample(2),
            lambda: tree.sample_weighted(2, 0.4),
            lambda: tree.get(torch.arange(2)),
        ):
            with pytest.raises(ArgumentError, match="has no memory"):
                call()
    assert torch.equal(tree.buffer, before)
    assert tree.sample(2)[0].shape == (2,)


def test_the_negative_bit_of_one_element_is_resolved():
    tree, raw = _tree(torch.ones(3)), torch.zeros(3)
    turned = torch.tensor([1 - 3j]).conj().imag  # dense, and its memory holds the other sign
    tree.update(torch.tensor([1]), turned)
    assert tree.get(torch.tensor([1])).item() == 3
    tree.update_from_errors(torch.tensor([2]), turned, 0.0, 1.0, raw=raw)
    assert raw.tolist() == [0, 0, 3]
    with pytest.raises(ArgumentError, match="at least 0"):
        tree.update(torch.tensor([1]), -turned.clone().resolve_neg())
    assert tree.sample(1, u=torch.tensor([0.5 - 0.5j], dtype=torch.complex128).conj().imag)[0].item() == 1


def test_complex_randomness_is_refused():
    with pytest.raises(ArgumentError, match="complex64"):
        _tree(torch.ones(3)).sample(2, u=torch.zeros(2, dtype=torch.complex64))


_FIRST = """
import sys, torch
from contextlib import ExitStack
from torch._subclasses import FakeTensorMode
import rl.replay, warnings
warnings.simplefilter("error")

def first(x=None):
    from rl.native import NativePriorityTree
    from rl.core import default
    made.append(default().answer("rl_priority_tree", capacity=4, device=torch.device("cpu"), dtype=torch.float32).value)
    return torch.zeros(()) if x is None else x.sum()

made, kind = [], sys.argv[1]
if kind == "inference":
    with torch.inference_mode():
        first()
elif kind == "fake":
    with FakeTensorMode():
        from rl.native import NativePriorityTree
else:
    torch.func.grad(first)(torch.ones(2))
from rl.native import NativePriorityTree
for tree in (*made, NativePriorityTree(4)):
    tree.update(torch.arange(4), torch.ones(4))
    tree.load_state_dict(tree.state_dict())
    assert tree.sample(2)[0].shape == tree.sample_weighted(2, 0.4)[0].shape == (2,)
    assert tree.total() == 4 and tree.min() == tree.max() == 1 and tree.get(torch.arange(4)).sum() == 4
    tree.share_memory().rebuild()
"""


@pytest.mark.parametrize("kind", ["inference", "fake", "grad"])
def test_the_first_use_may_be_inside_of_any_mode(kind):
    subprocess.run([sys.executable, "-c", _FIRST, kind], check=True)


def test_the_first_sample_of_a_thread_may_be_in_inference_mode():
    tree = _tree(torch.ones(4))

    def draws():
        with torch.inference_mode():
            tree.sample(2)
        return tree.sample(2)[0]

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(draws).result().shape == (2,)


_LITTLE_STACK = """
import threading, torch
from rl.native import NativePriorityTree
tree = NativePriorityTree(100_000)
tree.update(torch.arange(100_000), torch.rand(100_000))
threading.stack_size(128 * 1024)
for n in (4, 256, 65_536):
    found = []
    thread = threading.Thread(target=lambda: found.append(tree.sample_weighted(n, 0.5)))
    thread.start()
    thread.join()
    assert found[0][0].numel() == n
"""


@pytest.mark.skipif(sys.platform != "linux", reason="how small a stack may be differs")
def test_sampling_fits_into_a_small_stack():
    subprocess.run([sys.executable, "-c", _LITTLE_STACK], check=True)
