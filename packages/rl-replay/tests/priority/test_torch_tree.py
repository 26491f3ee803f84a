"""The priority tree in plain torch, with one level and with blocks, and the toy tree, against an array."""

import copy
import pickle
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.plugins.replay import rl_priority_tree

# blocks of 32 rows are built, and the last of equal indices is compared with its definition
from rl.replay._priorities import _last_of_each
from rl.replay._priority_tree import PrefixTree
from rl.testing import ToyPriorityTree, check_priority_tree


def blocks(capacity, device="cpu", dtype=torch.float32):
    return PrefixTree(capacity, device, dtype, block=32)


OWN = {"one level": PrefixTree, "blocks": blocks}
TREES = {**OWN, "toy": ToyPriorityTree}
CPU = torch.device("cpu")
trees = pytest.mark.parametrize("kind", TREES.values(), ids=TREES)
own = pytest.mark.parametrize("kind", OWN.values(), ids=OWN)


@trees
def test_conforms_to_the_protocol(kind):
    check_priority_tree(lambda capacity, dtype: kind(capacity, "cpu", dtype))


def test_the_hook_returns_a_tree_for_every_capacity_and_both_dtypes():
    check_priority_tree(lambda capacity, dtype: rl_priority_tree(capacity, CPU, dtype))
    assert rl_priority_tree(8, CPU, torch.float16) is None


_priorities = st.one_of(st.just(0.0), st.floats(2**-20, 2**20, width=32))


@trees
@given(data=st.data(), capacity=st.integers(1, 1100), double=st.booleans())
@settings(max_examples=30, deadline=None)
def test_any_sequence_of_updates_matches_an_array(kind, data, capacity, double):
    dtype = torch.float64 if double else torch.float32
    tree, array = kind(capacity, "cpu", dtype), torch.zeros(capacity, dtype=dtype)
    steps = data.draw(
        st.lists(st.lists(st.tuples(st.integers(0, capacity - 1), _priorities), max_size=40), min_size=1, max_size=6)
    )
    generator = torch.Generator().manual_seed(capacity)
    for step in steps:
        index = torch.tensor([i for i, _ in step], dtype=torch.int64)
        tree.update(index, torch.tensor([p for _, p in step], dtype=dtype))
        for i, p in step:
            array[i] = p
        assert torch.equal(tree.get(torch.arange(capacity)), array)
        assert tree.total().item() == pytest.approx(array.double().sum().item(), rel=1e-12)
        assert tree.max() == array.max()
        assert tree.min() == torch.where(array > 0, array, torch.inf).min()
        if array.any():
            for stratified in (False, True):
                index, priority = tree.sample(50, generator=generator, stratified=stratified)
                assert (array[index] > 0).all()
                assert torch.equal(priority, array[index])


@trees
def test_sums_depend_only_on_the_priorities(kind):
    """However a tree came to its leaves: no drift, and an exact resume."""
    generator = torch.Generator().manual_seed(0)
    tree, n = kind(3000, "cpu", torch.float32), 3000
    for _ in range(60):
        index = torch.randint(0, n, (200,), generator=generator)
        tree.update(index, 10 ** (12 * torch.rand(200, generator=generator) - 6))
    leaves = tree.get(torch.arange(n))
    other = kind(n, "cpu", torch.float32)
    other.update(torch.arange(n), leaves)
    one, two = torch.Generator().manual_seed(5), torch.Generator().manual_seed(5)
    assert torch.equal(tree.total(), other.total())
    assert torch.equal(tree.sample(5000, generator=one)[0], other.sample(5000, generator=two)[0])
    tree.update(torch.arange(n), torch.full((n,), 1e-6))
    assert tree.total().item() == pytest.approx(n * float(torch.tensor(1e-6)), rel=1e-12)


_slow = (pytest.param(n, marks=pytest.mark.slow) for n in (1_000_000, 4_000_000))


@own
@pytest.mark.parametrize("n", [100_000, *_slow])
def test_draws_from_many_leaves_pass_a_chi_square_test(kind, n):
    # A grid of 24 bits, as a float32 uniform has, fails this by 9 standard deviations for a million priorities.
    tree, generator = kind(n), torch.Generator().manual_seed(1)
    tree.update(torch.arange(n), torch.ones(n))
    counts = torch.zeros(n, dtype=torch.float64)
    draws = 10**6 if n == 100_000 else 2 * 10**7
    for _ in range(draws // 10**6):
        counts += tree.sample(10**6, generator=generator)[0].bincount(minlength=n)
    expected = draws / n
    statistic = float(((counts - expected) ** 2 / expected).sum())
    z = (statistic - (n - 1)) / (2 * (n - 1)) ** 0.5
    assert abs(z) < 4.9  # once in a million


@trees
@pytest.mark.parametrize("u", [0.0, 0.5, 1.0 - 2**-53, 1.0])
def test_random_numbers_on_the_boundary_of_a_bin_never_sample_zero(kind, u, monkeypatch):
    n = 70
    for live in ([0, 35, 69], [5], [31, 32], [1, 68]):
        tree = kind(n, "cpu", torch.float32)
        tree.update(torch.tensor(live), torch.ones(len(live)))
        for mark in (u, *(k / len(live) for k in range(len(live) + 1))):
            monkeypatch.setattr(torch, "rand", lambda count, mark=mark, **_: torch.full((count,), mark).double())
            assert int(tree.sample(1)[0]) in live
        monkeypatch.undo()


@trees
def test_many_repeated_indices(kind):
    tree, generator = kind(50, "cpu", torch.float32), torch.Generator().manual_seed(2)
    index = torch.randint(0, 50, (65_536,), generator=generator)
    tree.update(index, torch.arange(65_536.0))
    expected = torch.zeros(50)
    for i, p in zip(index.tolist(), range(65_536), strict=True):
        expected[i] = p
    assert torch.equal(tree.get(torch.arange(50)), expected)


@own
def test_of_very_many_repeated_indices_the_last_counts_whatever_the_threads(kind):
    n, leaves = 400_000, 150_000
    index = torch.randint(0, leaves, (n,), generator=torch.Generator().manual_seed(2))
    priority = torch.arange(1, n + 1, dtype=torch.float64)
    expected = torch.zeros(leaves, dtype=torch.float64).scatter_reduce_(0, index, priority, "amax")
    tree, threads = kind(leaves, "cpu", torch.float64), torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        tree.update(index, priority)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(tree.get(torch.arange(leaves)), expected)


def test_the_last_value_of_each_index_is_selected():
    index = torch.randint(0, 50, (1000,), generator=torch.Generator().manual_seed(2))
    unique, values = _last_of_each(index, torch.arange(1000))
    assert unique.tolist() == sorted(set(index.tolist()))
    assert all(index[v] == i and not (index[v + 1 :] == i).any() for i, v in zip(unique, values, strict=True))


@own
def test_errors_name_the_wrong_value(kind):
    tree = kind(4)
    tree.update(torch.arange(4), torch.ones(4))
    for index, priority, error, word in [
        ([9], [1.0], IndexError, "9 is outside"),
        ([0.5], [1.0], IndexError, "float32"),
        ([True], [1.0], IndexError, "bool"),
        ([0], [float("nan")], ValueError, "nan"),
        ([0, 1], [1.0], ValueError, "one shape"),
    ]:
        with pytest.raises(error, match=word):
            tree.update(torch.tensor(index), torch.tensor(priority))
    assert tree.total() == 4
    tree.update(torch.empty(0, dtype=torch.int64), torch.empty(0))
    assert tree.total() == 4


@own
@pytest.mark.parametrize("rows", [2, 40])  # within a block, and over blocks
def test_a_sum_that_float64_cannot_hold_is_refused(kind, rows):
    tree = kind(rows, "cpu", torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tree.update(torch.tensor([0, rows - 1]), torch.full((2,), 1e308, dtype=torch.float64))
        with pytest.raises(ValueError, match="too large"):
            tree.sample(1)
        tree.update(torch.tensor([0]), torch.zeros(1, dtype=torch.float64))
        assert set(tree.sample(5)[0].tolist()) == {rows - 1}


def naive_min(array):
    return torch.where(array > 0, array, torch.inf).min()


_EDGES = [1, 2, 31, 32, 33, 63, 64, 65, 1023, 1024, 1025]


@own
@given(data=st.data(), capacity=st.sampled_from(_EDGES), seed=st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_every_call_between_updates_sees_all_updates(kind, data, capacity, seed):
    """Sums wait for the next question: few and many leaves at a time, at the edges of blocks, each question."""
    rng = torch.Generator().manual_seed(seed)
    tree, array = kind(capacity), torch.zeros(capacity)
    calls = data.draw(st.lists(st.sampled_from(["one", "edge", "few", "all", "zero", *QUESTIONS]), max_size=25))
    for call in calls:
        if call in QUESTIONS:
            QUESTIONS[call](tree, array, rng)
            continue
        size = {"one": 1, "edge": 2, "few": 5, "all": 2 * capacity, "zero": capacity}[call]
        index = torch.randint(0, capacity, (size,), generator=rng)
        if call == "edge":
            index = torch.tensor([capacity - 1, (capacity - 1) // 32 * 32])
        priority = 10 ** (8 * torch.rand(size, generator=rng) - 4)
        if call == "zero":
            priority[torch.rand(size, generator=rng) < 0.7] = 0
        tree.update(index, priority)
        for i, p in zip(index.tolist(), priority, strict=True):
            array[i] = p
    for question in QUESTIONS.values():
        question(tree, array, rng)


def _ask_sample(tree, array, rng):
    if not array.any():
        with pytest.raises(ValueError, match="zero"):
            tree.sample(1, generator=rng)
        return
    for n, stratified in ((1, False), (40, True), (300, False), (300, True)):
        index, priority = tree.sample(n, generator=rng, stratified=stratified)
        assert index.dtype == torch.int64
        assert index.shape == priority.shape == (n,)
        assert (array[index] > 0).all()
        assert torch.equal(priority, array[index])


def _ask_min(tree, array, rng):
    assert tree.min() == naive_min(array)


def _ask_max(tree, array, rng):
    assert tree.max() == array.max()


def _ask_total(tree, array, rng):
    assert tree.total().item() == pytest.approx(array.double().sum().item(), rel=1e-12)


def _ask_get(tree, array, rng):
    index = torch.randint(0, len(array), (7,), generator=rng)
    assert torch.equal(tree.get(index), array[index])


QUESTIONS = {"sample": _ask_sample, "min": _ask_min, "max": _ask_max, "total": _ask_total, "get": _ask_get}


@own
@pytest.mark.parametrize("capacity", [*_EDGES, 4096, 30_000, 655_360, 655_361])
def test_only_the_last_leaf(kind, capacity):
    tree = kind(capacity)
    tree.update(torch.tensor([capacity - 1]), torch.tensor([0.25]))
    index, priority = tree.sample(300)
    assert set(index.tolist()) == {capacity - 1}
    assert set(priority.tolist()) == {tree.total().item()} == {tree.min().item()} == {tree.max().item()} == {0.25}
    with pytest.raises(IndexError):
        tree.get(torch.tensor([capacity]))


@own
@pytest.mark.parametrize("n", [1, 255, 256, 5000])
@pytest.mark.parametrize("capacity", [33, 1000, 70_000])
def test_a_sample_is_the_priority_in_whose_bin_the_random_number_falls(kind, capacity, n):
    tree = kind(capacity, "cpu", torch.float64)
    leaves = torch.randint(0, 3, (capacity,)).double()  # sums without rounding
    leaves[capacity // 2] = 1
    tree.update(torch.arange(capacity), leaves)
    index, _ = tree.sample(n, generator=torch.Generator().manual_seed(3))
    u = torch.rand(n, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    ends = leaves.cumsum(0)
    assert torch.equal(index, torch.searchsorted(ends, u * ends[-1], right=True))


def test_the_rest_of_a_random_number_may_round_to_the_sum_of_its_block():
    """2^52 + 3 - 1.5 rounds to 2^52 + 2, all of the second block; the leaves behind its only one are zero."""
    tree = blocks(96, "cpu", torch.float64)
    leaves = torch.tensor([1.5, 2.0**52 + 2, 2.0**52], dtype=torch.float64)
    tree.update(torch.tensor([0, 40, 64]), leaves)
    tree.total()
    marks = torch.tensor([0.0, 1.5, 2.0**52 + 3, 2.0**52 + 4], dtype=torch.float64)
    assert tree._search(marks).tolist() == [0, 40, 40, 64]


@own
def test_priorities_that_float64_barely_holds(kind):
    tree = kind(100, "cpu", torch.float64)
    tree.update(torch.tensor([3, 50]), torch.tensor([5e-324, 5e-324], dtype=torch.float64))
    assert set(tree.sample(300)[0].tolist()) <= {3, 50}
    assert tree.min() == 5e-324


@own
def test_copies_and_pickles_are_trees_of_their_own(kind):
    tree = kind(2000)
    tree.update(torch.arange(2000), torch.rand(2000) + 0.1)
    tree.sample(1)
    tree.update(torch.tensor([5]), torch.tensor([3.0]))
    for other in (copy.deepcopy(tree), pickle.loads(pickle.dumps(tree))):
        draws = [t.sample(300, generator=torch.Generator().manual_seed(1))[0] for t in (tree, other)]
        assert torch.equal(*draws)
        total = tree.total()
        other.update(torch.arange(1999), torch.zeros(1999))
        assert set(other.sample(300)[0].tolist()) == {1999}
        assert other.min() == other.max() == other.total()
        assert torch.equal(tree.total(), total)
        assert len(set(tree.sample(300)[0].tolist())) > 100


@own
def test_inputs_may_have_any_strides_gradients_and_dtype(kind):
    tree = kind(50)
    tree.update(torch.arange(50)[::2], torch.arange(100.0)[:50:2])
    assert torch.equal(tree.get(torch.tensor([4, 48])), torch.tensor([4.0, 48.0]))
    tree.update(torch.tensor([1, 2]), torch.tensor(3.0).expand(2))
    tree.update(torch.tensor([3], dtype=torch.int32), torch.tensor([0.5], dtype=torch.bfloat16))
    tree.update(torch.tensor([[5, 6]]), torch.tensor([[7.0, 8.0]]))
    tree.update(torch.tensor([7]), torch.tensor([9.0], requires_grad=True))
    tree.update(torch.tensor([48]), torch.tensor([-0.0]))
    tree.update(torch.tensor([9]), torch.tensor([1 - 2j]).conj().imag)  # a view that turns the sign
    assert tree.get(torch.tensor([1, 2, 3, 5, 6, 7, 9, 48])).tolist() == [3, 3, 0.5, 7, 8, 9, 2, 0]
    assert not tree.get(torch.tensor([7])).requires_grad
    assert tree.min() == 0.5
    with pytest.raises(ValueError, match="inf"):
        tree.update(torch.tensor([0]), torch.tensor([1e300], dtype=torch.float64))
    with pytest.raises(IndexError, match="-7"):
        tree.update(torch.tensor([60, -7]), torch.ones(2))
    with pytest.raises(ValueError, match="one shape"):
        tree.update(torch.tensor([[1, 2]]), torch.ones(2))


@own
def test_inputs_and_outputs_share_no_memory_with_the_tree(kind):
    tree = kind(40)
    index, priority = torch.arange(40), torch.ones(40)
    tree.update(index, priority)
    priority.fill_(5)
    index.fill_(0)
    for given_out in (tree.min(), tree.max(), tree.total(), *tree.sample(3), tree.get(torch.arange(40))):
        given_out.fill_(9)
    assert tree.total() == 40
    assert tree.min() == tree.max() == 1


@own
def test_calls_in_a_compiled_function_match_eager_calls(kind):
    def step(tree, index, error, generator):
        tree.update(index, error.abs() + 1)
        drawn, priority = tree.sample(300, generator=generator)
        return drawn + index.sum() * 0, priority / tree.min() + tree.max() + tree.total(), tree.get(index)

    torch._dynamo.reset()
    compiled = torch.compile(step, backend="aot_eager")
    trees, rngs = [kind(500), kind(500)], [torch.Generator().manual_seed(1) for _ in range(2)]
    for _ in range(3):
        index, error = torch.randint(500, (90,)), torch.randn(90)
        one = compiled(trees[0], index, error, rngs[0])
        other = step(trees[1], index, error, rngs[1])
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    with pytest.raises(IndexError, match="500 is outside"):
        compiled(trees[0], torch.full((90,), 500), error, rngs[0])
