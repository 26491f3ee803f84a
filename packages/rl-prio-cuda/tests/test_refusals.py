"""Invalid arguments: errors at the call, errors of `check`, and that neither writes."""

import pytest
import torch

from rl.core.errors import ArgumentError, CheckpointError, ShapeError
from rl.prio_cuda import CudaPriorityTree

# priorities are damaged in the buffer itself, where the layout says they lie
from rl.prio_cuda._calls import layout

NAN, INF = float("nan"), float("inf")


def _tree(make, rows=10, dtype=torch.float32):
    tree = make(rows, dtype)
    tree.update(torch.arange(rows, device=tree.device), torch.ones(rows, dtype=dtype, device=tree.device))
    return tree


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda t, d: t.update(torch.tensor([0.0], device=d), torch.ones(1, device=d)), ArgumentError, "int64"),
        (lambda t, d: t.update(torch.tensor([0], device=d), torch.ones(2, device=d)), ShapeError, "one"),
        (
            lambda t, d: t.update(torch.tensor([0], device="meta"), torch.ones(1, device=d)),
            ArgumentError,
            "indices are on meta",
        ),
        (
            lambda t, d: t.update(torch.tensor([0], device=d), torch.ones(1, device="meta")),
            ArgumentError,
            "values are on meta",
        ),
        (lambda t, d: t.get(torch.tensor([0.0], device=d)), ArgumentError, "int64"),
        (lambda t, d: t.update_from_errors(_one(d), torch.ones(1, device=d), -1.0, 0.6), ArgumentError, "eps"),
        (lambda t, d: t.update_from_errors(_one(d), torch.ones(1, device=d), 0.0, NAN), ArgumentError, "alpha"),
        (
            lambda t, d: t.update_from_errors(_one(d), torch.ones(1, device=d), 0, 1, rows=11),
            ArgumentError,
            "rows is 11",
        ),
        (lambda t, d: _beside(t, raw=torch.ones(9, device=d)), ShapeError, "raw"),
        (lambda t, d: _beside(t, raw=torch.ones(10, device=d).double()), ArgumentError, "raw"),
        (lambda t, d: _beside(t, largest=torch.ones(1, device=d)), ShapeError, "largest"),
        (lambda t, d: t.sample_weighted(3, -1.0), ArgumentError, "beta"),
        (lambda t, d: t.sample(-1), ArgumentError, "n is -1"),
        (lambda t, d: t.sample(2, u=torch.tensor([0.5], device=d)), ShapeError, r"\(2,\)"),
        (lambda t, d: CudaPriorityTree(0, device=d), ArgumentError, "at least 1"),
        (lambda t, d: CudaPriorityTree(2**47, device=d), ArgumentError, "2\\^46"),
        (lambda t, d: CudaPriorityTree(5, dtype=torch.float16, device=d), ArgumentError, "float16"),
        (lambda t, d: CudaPriorityTree(9, device=d, buffer=t.buffer), CheckpointError, "10 leaves"),
        (lambda t, d: CudaPriorityTree.from_buffer(t.buffer[:-64]), CheckpointError, "no priority tree"),
        (lambda t, d: CudaPriorityTree.from_buffer(t.buffer.float()), ArgumentError, "uint8"),
        (lambda t, d: CudaPriorityTree.from_buffer(t.buffer[1:]), ArgumentError, "64"),
        (lambda t, d: CudaPriorityTree.from_buffer([1]), ArgumentError, "a list"),
        (lambda t, d: CudaPriorityTree(10, device=d, buffer=[1]), ArgumentError, "a list"),
        (lambda t, d: CudaPriorityTree(2.5, device=d), ArgumentError, "2.5"),
        (lambda t, d: CudaPriorityTree("5", device=d), ArgumentError, "'5'"),
        (lambda t, d: t.update([1], torch.ones(1, device=d)), ArgumentError, "a list"),
        (lambda t, d: t.update(_one(d), [1.0]), ArgumentError, "a list"),
        (lambda t, d: t.update(_one(d), 1.0), ArgumentError, "a float"),
        (lambda t, d: t.update(_one(d), torch.ones(1, dtype=torch.complex64, device=d)), ArgumentError, "complex64"),
        (lambda t, d: t.get([1]), ArgumentError, "a list"),
        (lambda t, d: _beside(t, raw=[1.0] * 10), ArgumentError, "raw is a list"),
        (lambda t, d: _beside(t, largest=1.0), ArgumentError, "largest is a float"),
        (lambda t, d: _beside(t, rows=2.5), ArgumentError, "rows is 2.5"),
        (lambda t, d: t.sample(2.5), ArgumentError, "n is 2.5"),
        (lambda t, d: t.sample(None), ArgumentError, "n is None"),
        (lambda t, d: t.sample(2, u=[0.1, 0.2]), ArgumentError, "a list"),
        (lambda t, d: t.load_state_dict(None), CheckpointError, "NoneType"),
    ],
)
def test_invalid_arguments_raise_at_once(make, call, error, says):
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


LEAVES = layout(4000, 64).leaves


def _leaves(tree):
    """The priorities in the buffer itself, of 4000 rows."""
    return tree.buffer[LEAVES : LEAVES + 8 * 4000].view(torch.float64)


def _from_errors(tree, n, **given):
    """An update of `n` entries; what is given takes the place of what it would be."""
    rows = torch.arange(n - 1, -1, -1, device=tree.device)
    call = {"index": rows, "error": torch.full((n,), 9.0, dtype=torch.float64, device=tree.device), **given}
    tree.update_from_errors(call.pop("index"), call.pop("error"), 0.1, 0.6, **call)


SHARED = {
    "raw-error": lambda t, n, raw: _from_errors(t, n, raw=raw, error=raw[5 : n + 5]),
    "raw-one-error": lambda t, n, raw: _from_errors(t, n, raw=raw, error=raw[5]),
    "raw-index": lambda t, n, raw: _from_errors(t, n, raw=raw, index=raw.view(torch.int64)[-n:]),
    "largest-error": lambda t, n, raw: _from_errors(t, n, largest=raw[2], error=raw[:n]),
    "largest-index": lambda t, n, raw: _from_errors(t, n, largest=raw[n - 1], index=raw.view(torch.int64)[:n]),
    "largest-raw": lambda t, n, raw: _from_errors(t, n, raw=raw, largest=raw[-1]),
    "raw-buffer": lambda t, n, raw: _from_errors(t, n, raw=_leaves(t)),
    "largest-buffer": lambda t, n, raw: _from_errors(t, n, largest=t.buffer[40:48].view(torch.float64)[0]),
    "error-buffer": lambda t, n, raw: _from_errors(t, n, error=_leaves(t)[:n]),
    "priority-buffer": lambda t, n, raw: t.update(torch.arange(n, device=t.device), _leaves(t)[:n]),
    "index-buffer": lambda t, n, raw: t.update(_leaves(t)[:n].view(torch.int64), torch.ones_like(raw)[:n]),
}


@pytest.mark.parametrize(("n", "compiled"), [(6, False), (1025, False), (1025, True)], ids=str)
@pytest.mark.parametrize("what", SHARED)
def test_written_and_read_arguments_may_not_share_memory(make, what, n, compiled):
    """Threads would read what others have written: which, would be a matter of luck."""
    tree, raw = make(4000, torch.float64), torch.rand(4000, dtype=torch.float64)
    tree.update(torch.arange(4000, device=tree.device), raw.to(tree.device))
    raw = raw.to(tree.device)
    before = tree.buffer.clone(), raw.clone()
    call = SHARED[what]
    if compiled:
        torch.compiler.reset()
        call = torch.compile(call, fullgraph=True, backend="eager")
    # The compiler wraps what goes wrong while it traces.
    with pytest.raises(RuntimeError if compiled else ArgumentError, match=r"share memory.*clone"):
        call(tree, n, raw)
    tree.check()
    assert torch.equal(tree.buffer, before[0])
    assert torch.equal(raw, before[1])


def test_compiled_calls_check_memory_each_time(make):
    tree, raw = make(4000), torch.rand(4000).to(make(1).device)
    compiled = torch.compile(_from_errors, fullgraph=True, backend="eager")
    compiled(tree, 3000, raw=raw, error=torch.rand(3000, device=tree.device))
    before = tree.buffer.clone(), raw.clone()
    with pytest.raises(ArgumentError, match=r"share memory.*clone"):
        compiled(tree, 3000, raw=raw, error=raw[:3000])
    assert torch.equal(tree.buffer, before[0])
    assert torch.equal(raw, before[1])


@pytest.mark.parametrize("n", [6, 2000])
def test_adjacent_and_copied_arguments_are_accepted(make, n):
    tree, plain = make(4000), make(4000)
    room = torch.rand(8000).to(tree.device)
    raw, error = room[:4000], room[4000 : 4000 + n]
    _from_errors(tree, n, raw=raw, error=error, largest=room[4000 + n])
    rows = torch.arange(n - 1, -1, -1, device=tree.device)
    assert torch.equal(raw[rows], error)
    spread = raw[::2][:n]  # not contiguous: it is copied before anything is written
    expected = spread.clone()
    _from_errors(tree, n, raw=raw, error=spread)
    _from_errors(plain, n, error=expected)
    assert torch.equal(raw[rows], expected)
    assert torch.equal(tree.get(rows), plain.get(rows))
    _from_errors(tree, 0, raw=raw, index=raw[:0].long(), error=raw[5:5])
    tree.check()


@pytest.mark.parametrize("n", [20, 1024, 1025, 5000])
@pytest.mark.parametrize("bad", [-1, 10, 2**40, -(2**62)])
def test_a_bad_index_is_recorded_on_the_device(make, n, bad):
    tree = _tree(make)
    before = tree.buffer.clone()
    index = torch.zeros(n, dtype=torch.int64)
    index[[n - 3, n - 1]] = bad
    tree.update(index.to(tree.device), torch.full((n,), 9.0, device=tree.device))
    assert torch.equal(tree.buffer, before)
    with pytest.raises(IndexError, match=rf"index {bad:.0f}.*position {n - 3}"):
        tree.check()
    tree.check()  # raised once
    tree.update(torch.tensor([1], device=tree.device), torch.tensor([5.0], device=tree.device))
    tree.check()
    assert tree.total().item() == 14


@pytest.mark.parametrize("n", [20, 1025])
@pytest.mark.parametrize("bad", [-1.0, -1e-45, NAN, INF, -INF])
def test_a_bad_priority_is_recorded_on_the_device(make, n, bad):
    tree = _tree(make)
    before = tree.buffer.clone()
    priority = torch.full((n,), 9.0)
    priority[n - 2] = bad
    tree.update(torch.zeros(n, dtype=torch.int64, device=tree.device), priority.to(tree.device))
    assert torch.equal(tree.buffer, before)
    with pytest.raises(ArgumentError, match=f"position {n - 2}"):
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
    with pytest.raises(ArgumentError, match="position 280"):
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


@pytest.mark.parametrize("n", [2, 1100])
def test_an_error_with_an_infinite_power_is_reported(make, n):
    tree = _tree(make)
    error = torch.full((n,), 0.5, device=tree.device)
    error[1] = 2
    tree.update_from_errors(torch.zeros(n, dtype=torch.int64, device=tree.device), error, 0.0, 1e5)
    with pytest.raises(ArgumentError, match=r"2 is rejected.*position 1.*an error makes"):
        tree.check()


def test_integers_of_numpy_are_accepted(make):
    np = pytest.importorskip("numpy")
    tree = make(np.int64(5))
    assert type(tree.capacity) is int
    one = torch.ones(1, device=tree.device)
    tree.update_from_errors(torch.tensor([3], device=tree.device), one, np.float32(0), 1, rows=np.int32(4))
    assert tree.sample(np.int64(3), stratified=np.bool_(True))[0].tolist() == [3, 3, 3]
    tree.check()


def test_the_first_error_is_kept_and_does_not_block(make):
    tree = _tree(make)
    tree.update(torch.tensor([77], device=tree.device), torch.ones(1, device=tree.device))
    tree.update(torch.tensor([1], device=tree.device), torch.tensor([-5.0], device=tree.device))
    tree.update(torch.tensor([1], device=tree.device), torch.tensor([3.0], device=tree.device))
    assert tree.total().item() == 12
    with pytest.raises(IndexError, match="77"):
        tree.check()
    tree.check()


def test_sampling_from_an_empty_tree_is_recorded(make):
    tree = make(100)
    index, weight = tree.sample_weighted(50, 0.4)
    assert not index.any()
    assert not weight.any()
    with pytest.raises(ArgumentError, match="all priorities are zero"):
        tree.check()


def test_sampling_from_an_infinite_total_raises(make):
    tree = make(20, torch.float64)
    tree.update(torch.arange(20, device=tree.device), torch.full((20,), 1e308, dtype=torch.float64, device=tree.device))
    tree.check()
    tree.sample(1)
    with pytest.raises(ArgumentError, match="infinite"):
        tree.check()


@pytest.mark.parametrize("bad", [1.0, -0.1, NAN])
def test_a_bad_u_is_refused(make, bad):
    tree = _tree(make)
    tree.sample(2, u=torch.tensor([0.5, bad], dtype=torch.float64, device=tree.device))
    with pytest.raises(ArgumentError, match=r"outside.*position 1"):
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
    with pytest.raises(ArgumentError, match="position 5"):
        tree.check()
    assert tree.total().item() == total
