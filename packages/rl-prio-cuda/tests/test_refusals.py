"""What is wrong: what raises at once, what `check` raises, and that neither writes."""

import pytest
import torch

from rl.core.errors import CheckpointError, ShapeError, SpecError
from rl.prio_cuda import CudaPriorityTree

NAN, INF = float("nan"), float("inf")


def _tree(make, rows=10, dtype=torch.float32):
    tree = make(rows, dtype)
    tree.update(torch.arange(rows, device=tree.device), torch.ones(rows, dtype=dtype, device=tree.device))
    return tree


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda t, d: t.update(torch.tensor([0.0], device=d), torch.ones(1, device=d)), SpecError, "int64"),
        (lambda t, d: t.update(torch.tensor([0], device=d), torch.ones(2, device=d)), ShapeError, "one"),
        (
            lambda t, d: t.update(torch.tensor([0], device="meta"), torch.ones(1, device=d)),
            SpecError,
            "indices are on meta",
        ),
        (
            lambda t, d: t.update(torch.tensor([0], device=d), torch.ones(1, device="meta")),
            SpecError,
            "values are on meta",
        ),
        (lambda t, d: t.get(torch.tensor([0.0], device=d)), SpecError, "int64"),
        (lambda t, d: t.update_from_errors(_one(d), torch.ones(1, device=d), -1.0, 0.6), SpecError, "eps"),
        (lambda t, d: t.update_from_errors(_one(d), torch.ones(1, device=d), 0.0, NAN), SpecError, "alpha"),
        (lambda t, d: t.update_from_errors(_one(d), torch.ones(1, device=d), 0, 1, rows=11), SpecError, "rows is 11"),
        (lambda t, d: _beside(t, raw=torch.ones(9, device=d)), ShapeError, "raw"),
        (lambda t, d: _beside(t, raw=torch.ones(10, device=d).double()), SpecError, "raw"),
        (lambda t, d: _beside(t, largest=torch.ones(1, device=d)), ShapeError, "largest"),
        (lambda t, d: t.sample_weighted(3, -1.0), SpecError, "beta"),
        (lambda t, d: t.sample(-1), SpecError, "-1 draws"),
        (lambda t, d: t.sample(2, u=torch.tensor([0.5], device=d)), ShapeError, r"\(2,\)"),
        (lambda t, d: CudaPriorityTree(0, device=d), SpecError, "at least 1"),
        (lambda t, d: CudaPriorityTree(2**47, device=d), SpecError, "2\\^46"),
        (lambda t, d: CudaPriorityTree(5, dtype=torch.float16, device=d), SpecError, "float16"),
        (lambda t, d: CudaPriorityTree(9, device=d, buffer=t.buffer), CheckpointError, "10 leaves"),
        (lambda t, d: CudaPriorityTree.from_buffer(t.buffer[:-64]), CheckpointError, "no priority tree"),
        (lambda t, d: CudaPriorityTree.from_buffer(t.buffer.float()), SpecError, "uint8"),
        (lambda t, d: CudaPriorityTree.from_buffer(t.buffer[1:]), SpecError, "64"),
    ],
)
def test_what_raises_at_once(make, call, error, says):
    tree = _tree(make)
    before = tree.buffer.clone()
    with pytest.raises(error, match=says):
        call(tree, tree.device)
    tree.check()
    assert torch.equal(tree.buffer, before)


def _one(device):
    return torch.tensor([0], device=device)


def _beside(tree, **given):
    tree.update_from_errors(_one(tree.device), torch.ones(1, device=tree.device), 0.1, 0.6, **given)


@pytest.mark.parametrize("n", [20, 1024, 1025, 5000])
@pytest.mark.parametrize("bad", [-1, 10, 2**40, -(2**62)])
def test_a_bad_index_is_left_on_the_device(make, n, bad):
    tree = _tree(make)
    before = tree.buffer.clone()
    index = torch.zeros(n, dtype=torch.int64)
    index[[n - 3, n - 1]] = bad
    tree.update(index.to(tree.device), torch.full((n,), 9.0, device=tree.device))
    assert torch.equal(tree.buffer, before)
    with pytest.raises(IndexError, match=rf"index {bad:.0f}.*place {n - 3}"):
        tree.check()
    tree.check()  # raised once
    tree.update(torch.tensor([1], device=tree.device), torch.tensor([5.0], device=tree.device))
    tree.check()
    assert tree.total().item() == 14


@pytest.mark.parametrize("n", [20, 1025])
@pytest.mark.parametrize("bad", [-1.0, -1e-45, NAN, INF, -INF])
def test_a_bad_priority_is_left_on_the_device(make, n, bad):
    tree = _tree(make)
    before = tree.buffer.clone()
    priority = torch.full((n,), 9.0)
    priority[n - 2] = bad
    tree.update(torch.zeros(n, dtype=torch.int64, device=tree.device), priority.to(tree.device))
    assert torch.equal(tree.buffer, before)
    with pytest.raises(SpecError, match=f"place {n - 2}"):
        tree.check()


@pytest.mark.parametrize("n", [300, 3000])
@pytest.mark.parametrize("bad", [NAN, INF, -INF, 3e38])
def test_a_bad_error_writes_nothing_anywhere(make, n, bad):
    tree = _tree(make, n)
    before, raw, largest = tree.buffer.clone(), torch.zeros(n, device=tree.device), torch.ones((), device=tree.device)
    error = torch.full((n,), 5.0, device=tree.device)
    error[280] = bad
    rows = torch.arange(n, device=tree.device)
    tree.update_from_errors(rows, error, 1.0, 2.0, raw=raw, largest=largest)
    with pytest.raises(SpecError, match="place 280"):
        tree.check()
    assert torch.equal(tree.buffer, before)
    assert not raw.any()
    assert largest.item() == 1


@pytest.mark.parametrize("n", [4, 2000])
def test_rows_bound_the_indices(make, n):
    tree = _tree(make)
    before = tree.buffer.clone()
    index = torch.arange(n, device=tree.device) % 6
    tree.update_from_errors(index, torch.full((n,), 3.0, device=tree.device), 0.0, 1.0, rows=3)
    with pytest.raises(IndexError, match="index 3"):
        tree.check()
    assert torch.equal(tree.buffer, before)


def test_the_first_error_is_kept_and_does_not_block(make):
    tree = _tree(make)
    tree.update(torch.tensor([77], device=tree.device), torch.ones(1, device=tree.device))
    tree.update(torch.tensor([1], device=tree.device), torch.tensor([-5.0], device=tree.device))
    tree.update(torch.tensor([1], device=tree.device), torch.tensor([3.0], device=tree.device))
    assert tree.total().item() == 12
    with pytest.raises(IndexError, match="77"):
        tree.check()
    tree.check()


def test_an_empty_tree_draws_nothing(make):
    tree = make(100)
    index, weight = tree.sample_weighted(50, 0.4)
    assert not index.any()
    assert not weight.any()
    with pytest.raises(SpecError, match="all priorities are zero"):
        tree.check()


def test_a_total_beyond_float64_is_refused_when_drawing(make):
    tree = make(20, torch.float64)
    tree.update(torch.arange(20, device=tree.device), torch.full((20,), 1e308, dtype=torch.float64, device=tree.device))
    tree.check()
    tree.sample(1)
    with pytest.raises(SpecError, match="infinite"):
        tree.check()


@pytest.mark.parametrize("bad", [1.0, -0.1, NAN])
def test_a_bad_u_is_refused(make, bad):
    tree = _tree(make)
    tree.sample(2, u=torch.tensor([0.5, bad], dtype=torch.float64, device=tree.device))
    with pytest.raises(SpecError, match=r"outside.*place 1"):
        tree.check()


def test_a_bad_index_of_get_is_refused(make):
    tree = _tree(make)
    assert tree.get(torch.tensor([3, -1, 10], device=tree.device)).tolist() == [1, 0, 0]
    with pytest.raises(IndexError):
        tree.check()


def test_a_damaged_leaf_is_found_when_rebuilding(make):
    tree = _tree(make)
    total = tree.total().item()
    tree._leaves[5] = NAN
    tree.rebuild()
    with pytest.raises(SpecError, match="place 5"):
        tree.check()
    assert tree.total().item() == total
