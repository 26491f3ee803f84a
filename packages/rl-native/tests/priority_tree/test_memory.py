"""The buffer of the tree: states, files, processes, sizes beyond 2^31, and compiled graphs."""

import pickle
import resource
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp

from rl.core.errors import ArgumentError, CheckpointError
from rl.native import NativePriorityTree

# the layout of the buffer: its bytes are counted, and single ones are overwritten
from rl.native._priority_arguments import ALIGN, buffer_size, leaves_at, zeros


def _tree(rows=1000, dtype=torch.float32):
    tree = NativePriorityTree(rows, dtype=dtype)
    tree.update(torch.arange(rows), torch.rand(rows, generator=torch.Generator().manual_seed(0), dtype=dtype))
    return tree


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_state_makes_the_same_tree(dtype):
    tree, other = _tree(dtype=dtype), NativePriorityTree(1000, dtype=dtype)
    state = tree.state_dict()
    tree.update(torch.tensor([0]), torch.tensor([9.0]))
    other.load_state_dict(state)
    assert torch.equal(other.buffer, _tree(dtype=dtype).buffer)


@pytest.mark.parametrize(
    "state",
    [{}, {"priority": torch.ones(999)}, {"priority": torch.ones(1000).double()}, {"priority": -torch.ones(1000)}],
    ids=["none", "shape", "dtype", "negative"],
)
def test_a_state_that_does_not_fit_changes_nothing(state):
    tree = _tree()
    before = tree.buffer.clone()
    with pytest.raises(CheckpointError):
        tree.load_state_dict(state)
    assert torch.equal(tree.buffer, before)


def test_a_file_is_the_tree(tmp_path):
    tree = _tree()
    tree.save(tmp_path / "tree")
    mapped = NativePriorityTree.memory_map(tmp_path / "tree")
    assert torch.equal(mapped.buffer, tree.buffer)
    mapped.update(torch.tensor([7]), torch.tensor([3.0]))
    again = NativePriorityTree.memory_map(tmp_path / "tree")
    assert again.get(torch.tensor([7])).item() == 3
    assert again.total() == mapped.total()


def test_a_tree_saved_onto_its_own_file_stays_there(tmp_path):
    path = tmp_path / "tree"
    tree = NativePriorityTree.memory_map(path, 1000)
    tree.update(torch.tensor([5]), torch.tensor([2.0]))
    tree.save(path)
    tree.update(torch.tensor([6]), torch.tensor([3.0]))
    assert NativePriorityTree.memory_map(path).get(torch.tensor([5, 6])).tolist() == [2, 3]
    NativePriorityTree.from_buffer(tree.buffer).save(path)  # it does not know of the file
    assert NativePriorityTree.memory_map(path).get(torch.tensor([5, 6])).tolist() == [2, 3]
    assert tree.get(torch.tensor([5, 6])).tolist() == [2, 3]


def test_a_save_that_fails_keeps_the_older_file(tmp_path, monkeypatch):
    path = tmp_path / "tree"
    _tree(100).save(path)
    before = path.read_bytes()

    def full(*_):
        raise OSError("no space")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="no space"):
        _tree(200).save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def _resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc")
def test_untouched_leaves_take_no_memory():
    before = _resident()
    tree = NativePriorityTree(2**26)
    assert _resident() - before < 2**26 < tree.buffer.numel() / 4
    tree.update(torch.tensor([0, 2**26 - 1]), torch.tensor([1.0, 3.0]))
    assert tree.total().item() == 4
    assert set(tree.sample(100)[0].tolist()) == {0, 2**26 - 1}
    assert _resident() - before < 2**26


@pytest.mark.parametrize("size", [1, 1000, 2**21 - 1, 2**21, 5_000_001])
def test_a_buffer_is_zero_aligned_and_no_larger_than_asked(size):
    buffer = zeros(size)
    assert buffer.shape == (size,)
    assert buffer.data_ptr() % ALIGN == 0
    assert buffer.untyped_storage().nbytes() == size
    assert not buffer.any()
    buffer[-1] = 7
    assert buffer.sum() == 7


def test_a_system_without_large_pages_has_buffers_too(monkeypatch):
    monkeypatch.delattr("mmap.MADV_HUGEPAGE", raising=False)
    assert not zeros(2**22).any()


def test_files_that_are_no_tree_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="no file"):
        NativePriorityTree.memory_map(tmp_path / "none")
    (tmp_path / "text").write_bytes(b"x" * 4096)
    with pytest.raises(CheckpointError, match="no priority tree"):
        NativePriorityTree.memory_map(tmp_path / "text")
    with pytest.raises(CheckpointError, match="exists"):
        NativePriorityTree.memory_map(tmp_path / "text", 10)
    _tree().save(tmp_path / "short")
    (tmp_path / "short").write_bytes((tmp_path / "short").read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="no priority tree"):
        NativePriorityTree.memory_map(tmp_path / "short")


def test_rebuild_takes_what_was_written_into_the_leaves():
    tree = _tree()
    copy = NativePriorityTree.from_buffer(tree.buffer.clone())
    copy._leaves[5] = 100.0
    copy.rebuild()
    tree.update(torch.tensor([5]), torch.tensor([100.0]))
    assert torch.equal(copy.buffer, tree.buffer)
    copy._leaves[5] = float("nan")
    with pytest.raises(ValueError, match="position 5"):
        copy.rebuild()


def test_pickle_keeps_the_bytes():
    tree = _tree()
    assert torch.equal(pickle.loads(pickle.dumps(tree)).buffer, tree.buffer)


def _write(tree, done):
    tree.update(torch.tensor([0, 1]), torch.tensor([50.0, 60.0]))
    done.put(tree.sample(1000)[0].bincount(minlength=100).argmax().item())


def test_two_processes_share_one_tree():
    tree = NativePriorityTree(100).share_memory()
    tree.update(torch.tensor([2]), torch.tensor([1.0]))
    context = mp.get_context("spawn")
    done = context.Queue()
    process = context.Process(target=_write, args=(tree, done))
    process.start()
    assert done.get(timeout=60) == 1
    process.join(60)
    assert tree.total().item() == 111
    assert tree.get(torch.arange(3)).tolist() == [50, 60, 1]


@pytest.mark.parametrize("capacity", [2**31, 2**31 + 5, 2**33 + 1])
def test_more_leaves_than_2_to_the_31(tmp_path, capacity):
    # In a sparse file: only touched pages take room, because a tree full of zeros is all zeros.
    tree = NativePriorityTree.memory_map(tmp_path / "tree", capacity)
    index = torch.tensor([0, 2**31 - 1, capacity // 2, capacity - 1])
    tree.update(index, torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert tree.total().item() == tree.get(index.unique()).sum().item()
    assert set(tree.sample(1000)[0].tolist()) == set(index.tolist())
    assert (tmp_path / "tree").stat().st_blocks * 512 < 2**20
    assert buffer_size(capacity, torch.float32) < 5.2 * capacity
    with pytest.raises(IndexError):
        tree.update(torch.tensor([capacity]), torch.tensor([1.0]))


def test_a_compiled_graph_holds_the_tree_without_a_break():
    tree, plain = _tree(), _tree()

    def step(tree, index, priority, error, u, raw, largest):
        tree.update(index, priority)
        tree.update_from_errors(index[:3], error, 0.01, 0.6, raw=raw, largest=largest, rows=900)
        drawn, weight = tree.sample_weighted(4, 0.4, u=u)
        return drawn * 2, weight, tree.get(index), tree.sample(8)[0], tree.total()

    arguments = (
        torch.tensor([1, 2, 3, 2]),
        torch.tensor([5.0, 6.0, 7.0, 8.0]),
        torch.tensor([1.0, -2.0, 3.0]),
        torch.rand(4, dtype=torch.float64),
    )
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    beside, plainly = ((torch.zeros(1000), torch.ones(())) for _ in range(2))
    for got, expected in zip(
        compiled(tree, *arguments, *beside)[:3], step(plain, *arguments, *plainly)[:3], strict=True
    ):
        assert torch.equal(got, expected)
    assert torch.equal(tree.buffer, plain.buffer)
    for got, expected in zip(beside, plainly, strict=True):
        assert torch.equal(got, expected)
    with pytest.raises(IndexError, match="900"):
        compiled(tree, torch.tensor([1, 2, 900, 3]), *arguments[1:], *beside)


def test_a_compiled_graph_holds_a_rebuild_too():
    tree, given = _tree(), torch.rand(1000) + 1
    start = leaves_at(1000, torch.float32)

    def step(tree, leaves):
        tree.buffer[start : start + 4000] = leaves.view(torch.uint8)
        tree.rebuild()
        return tree.total()

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    assert compiled(tree, given).item() == pytest.approx(given.double().sum().item(), rel=1e-13)
    plain = NativePriorityTree(1000)
    plain.update(torch.arange(1000), given)
    assert torch.equal(tree.buffer, plain.buffer)
    given[7] = -1
    with pytest.raises(ArgumentError, match="position 7"):
        compiled(tree, given)


def test_the_operators_are_as_they_declare():
    tree, index = _tree(100), torch.tensor([1, 2])
    ops = torch.ops.rl_native
    checks = ["test_schema", "test_faketensor"]
    torch.library.opcheck(ops.tree_set, (tree.buffer, index, torch.ones(2)), test_utils=checks)
    for beside in ((None, None), (torch.zeros(100), torch.ones(()))):
        arguments = (tree.buffer, index, torch.ones(2), 0.1, 0.6, *beside, 100)
        torch.library.opcheck(ops.tree_set_errors, arguments, test_utils=checks)
    torch.library.opcheck(ops.tree_get, (tree.buffer, index, torch.float32), test_utils=checks)
    torch.library.opcheck(ops.tree_rebuild, (tree.buffer, torch.float32), test_utils=checks)
    u = torch.rand(5, dtype=torch.float64)
    seed = torch.zeros((), dtype=torch.int64)
    torch.library.opcheck(ops.tree_sample, (tree.buffer, 5, seed, u, False, 0.4, torch.float32), test_utils=checks)


@pytest.mark.parametrize("capacity", [100, 1_000_000])
@pytest.mark.parametrize("way", ["sent", "shared"])
def test_a_tree_continues_after_its_memory_moved(capacity, way):
    """To send a tensor to another process moves it to shared memory, and frees where it was."""
    tree = NativePriorityTree(capacity)
    tree.update(torch.arange(10), torch.ones(10))
    if way == "sent":
        ForkingPickler.dumps(tree)
    else:
        tree.buffer.share_memory_()
    tree.update(torch.tensor([50]), torch.tensor([90.0]))
    tree.update_from_errors(torch.tensor([60]), torch.tensor([900.0]), 0.0, 1.0)
    assert tree.total().item() == 1000
    assert NativePriorityTree.from_buffer(tree.buffer).get(torch.tensor([50, 60])).tolist() == [90, 900]
    assert tree.get(torch.tensor([50, 60])).tolist() == [90, 900]
    assert tree.sample(1, u=torch.tensor([0.5]))[0].item() == 60
    assert tree.sample_weighted(9, 0.0)[1].tolist() == [1] * 9
    tree.rebuild()
    assert tree.total().item() == 1000


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rows", [1, 17, 130, 5000, 70_001])
def test_a_rebuild_leaves_nothing_of_damaged_nodes(rows, dtype):
    """Nor of the places in nodes that no child has: a draw would go there, and out of the buffer."""
    tree = _tree(rows, dtype)
    expected = tree.buffer.clone()
    damaged = expected.clone()
    damaged[24 : leaves_at(rows, dtype)].view(torch.float64)[:] = 0.5
    again = NativePriorityTree.from_buffer(damaged, rebuild=True)
    assert torch.equal(again.total(), tree.total())
    assert torch.equal(again.buffer[128:], expected[128:])  # behind the head
    for draws in (1, 5, 4000):
        index, priority = again.sample(draws)
        assert int(index.max()) < rows
        assert torch.equal(tree.get(index), priority)
