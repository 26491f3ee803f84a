"""Both torch trees, and the toy beside them, against an array."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.core.testing import ToyPriorityTree, check_priority_tree
from rl.plugins.replay import rl_priority_tree
from rl.replay._block_tree import BlockTree
from rl.replay._prefix_tree import PrefixTree
from rl.replay._torch_tree import PREFIX_UP_TO, WideTree, torch_tree
from rl.replay._tree_checks import _last_of_each

TREES = {"prefix": PrefixTree, "block": BlockTree, "wide": WideTree, "toy": ToyPriorityTree}
CPU = torch.device("cpu")
trees = pytest.mark.parametrize("kind", TREES.values(), ids=TREES)


@trees
def test_it_conforms(kind):
    check_priority_tree(lambda capacity, dtype: kind(capacity, "cpu", dtype))


def test_the_hook_answers_for_every_capacity_and_both_dtypes():
    check_priority_tree(lambda capacity, dtype: rl_priority_tree(capacity, CPU, dtype))
    assert type(torch_tree(PREFIX_UP_TO)) is PrefixTree
    assert type(torch_tree(PREFIX_UP_TO + 1)) is BlockTree
    assert type(torch_tree(10, "meta")) is WideTree  # adding in parallel needs its care
    assert rl_priority_tree(8, CPU, torch.float16) is None


_priorities = st.one_of(st.just(0.0), st.floats(2**-20, 2**20, width=32))


@trees
@given(data=st.data(), capacity=st.integers(1, 1100), double=st.booleans())
@settings(max_examples=30, deadline=None)
def test_any_sequence_of_updates_leaves_what_an_array_holds(kind, data, capacity, double):
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
def test_sums_depend_on_the_leaves_alone(kind):
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


@pytest.mark.parametrize("kind", [PrefixTree, BlockTree, WideTree], ids=["prefix", "block", "wide"])
@pytest.mark.parametrize("n", [100_000, 1_000_000])
def test_draws_from_many_leaves_pass_a_chi_square_test(kind, n):
    tree, generator = kind(n), torch.Generator().manual_seed(1)
    tree.update(torch.arange(n), torch.ones(n))
    counts = torch.zeros(n, dtype=torch.float64)
    draws = 0
    for _ in range(5):
        counts += tree.sample(200_000, generator=generator)[0].bincount(minlength=n)
        draws += 200_000
    expected = draws / n
    statistic = float(((counts - expected) ** 2 / expected).sum())
    z = (statistic - (n - 1)) / (2 * (n - 1)) ** 0.5
    assert abs(z) < 4.9  # once in a million


@trees
@pytest.mark.parametrize("u", [0.0, 0.5, 1.0 - 2**-53, 1.0])
def test_marks_on_the_boundary_of_a_cell_never_draw_zero(kind, u, monkeypatch):
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


@pytest.mark.parametrize("kind", [PrefixTree, BlockTree, WideTree], ids=["prefix", "block", "wide"])
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


def test_where_writes_are_not_in_order_the_last_is_picked_first():
    index = torch.randint(0, 50, (1000,), generator=torch.Generator().manual_seed(2))
    unique, values = _last_of_each(index, torch.arange(1000))
    assert unique.tolist() == sorted(set(index.tolist()))
    assert all(index[v] == i and not (index[v + 1 :] == i).any() for i, v in zip(unique, values, strict=True))


@pytest.mark.parametrize("kind", [PrefixTree, BlockTree, WideTree], ids=["prefix", "block", "wide"])
def test_refusals_name_what_came(kind):
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


def test_a_sum_that_float64_cannot_hold_is_refused():
    tree = PrefixTree(2, "cpu", torch.float64)
    tree.update(torch.arange(2), torch.full((2,), 1e308, dtype=torch.float64))
    with pytest.raises(ValueError, match="too large"):
        tree.sample(1)
