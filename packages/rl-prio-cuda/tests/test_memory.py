"""The buffer of the tree: states, files, copies, rl-native's bytes, and compiled graphs."""

import copy
import pickle

import pytest
import torch

from rl.core.errors import CheckpointError
from rl.prio_cuda import CudaPriorityTree

# the layout in Python is compared with that in C
from rl.prio_cuda._calls import layout
from rl.prio_cuda._library import platform_of


def _tree(make, rows=1000, dtype=torch.float32):
    tree = make(rows, dtype)
    priority = torch.rand(rows, generator=torch.Generator().manual_seed(0), dtype=dtype)
    tree.update(torch.arange(rows, device=tree.device), priority.to(tree.device))
    return tree


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("capacity", [1, 16, 17, 128, 129, 1024, 1025, 10**6, 2**31 + 5, 2**46])
def test_the_layout_is_that_of_the_library(device, capacity, bits):
    library, plan = platform_of(device).functions(), layout(capacity, bits)
    assert library.rl_prio_bytes(capacity, bits) == plan.size
    assert library.rl_prio_leaves_at(capacity, bits) == plan.leaves
    assert plan.padded >= capacity


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_state_makes_the_same_tree(make, dtype):
    tree, other = _tree(make, dtype=dtype), make(1000, dtype)
    state = tree.state_dict()
    tree.update(torch.tensor([0], device=tree.device), torch.tensor([9.0], device=tree.device))
    other.load_state_dict({"priority": state["priority"].cpu()})
    other.check()
    assert torch.equal(other.buffer, _tree(make, dtype=dtype).buffer)


@pytest.mark.parametrize(
    "state",
    [{}, {"priority": torch.ones(999)}, {"priority": torch.ones(1000).double()}, {"priority": -torch.ones(1000)}],
    ids=["none", "shape", "dtype", "negative"],
)
def test_a_state_that_does_not_fit_changes_nothing(make, state):
    tree = _tree(make)
    before = tree.buffer.clone()
    with pytest.raises(CheckpointError):
        tree.load_state_dict(state)
    assert torch.equal(tree.buffer, before)


def test_a_file_is_the_tree_here_and_in_rl_native(make, tmp_path):
    tree = _tree(make)
    tree.save(tmp_path / "tree")
    loaded = CudaPriorityTree.load(tmp_path / "tree", device=tree.device)
    assert torch.equal(loaded.buffer, tree.buffer)
    native = pytest.importorskip("rl.native").NativePriorityTree.memory_map(tmp_path / "tree")
    assert torch.equal(native.buffer, tree.buffer.cpu())
    native.update(torch.tensor([7]), torch.tensor([3.0]))
    tree.update(torch.tensor([7], device=tree.device), torch.tensor([3.0], device=tree.device))
    assert torch.equal(CudaPriorityTree.load(tmp_path / "tree", device=tree.device).buffer, tree.buffer)


def test_files_that_are_no_tree_are_refused(make, tmp_path):
    tree = _tree(make)
    with pytest.raises(CheckpointError, match="no file"):
        CudaPriorityTree.load(tmp_path / "none", device=tree.device)
    for size in (3, 4096):
        (tmp_path / "text").write_bytes(b"x" * size)
        with pytest.raises(CheckpointError, match="no priority tree"):
            CudaPriorityTree.load(tmp_path / "text", device=tree.device)
    tree.save(tmp_path / "short")
    (tmp_path / "short").write_bytes((tmp_path / "short").read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="no priority tree"):
        CudaPriorityTree.load(tmp_path / "short", device=tree.device)


def test_rebuild_takes_what_was_written_into_the_leaves(make):
    tree = _tree(make)
    other = CudaPriorityTree.from_buffer(tree.buffer.clone())
    other._leaves[5] = 100.0
    other.rebuild()
    tree.update(torch.tensor([5], device=tree.device), torch.tensor([100.0], device=tree.device))
    assert torch.equal(other.buffer, tree.buffer)
    other.check()
    again = CudaPriorityTree.from_buffer(tree.buffer.clone(), rebuild=True)
    assert torch.equal(again.buffer, tree.buffer)


def test_a_buffer_can_be_given(make):
    tree = _tree(make)
    same = CudaPriorityTree(1000, device=tree.device, buffer=tree.buffer)
    same.update(torch.tensor([0], device=tree.device), torch.tensor([50.0], device=tree.device))
    assert torch.equal(tree.max(), same.max())
    assert "capacity=1000" in repr(same)


def test_copies_and_pickles_keep_the_bytes(make):
    tree = _tree(make)
    for other in (pickle.loads(pickle.dumps(tree)), copy.deepcopy(tree)):
        assert torch.equal(other.buffer, tree.buffer)
        other.update(torch.tensor([0], device=tree.device), torch.tensor([50.0], device=tree.device))
        assert not torch.equal(other.buffer, tree.buffer)


def _step(tree, index, priority, error, u, raw, largest):
    tree.update(index, priority)
    tree.update_from_errors(index[:3], error, 0.01, 0.6, raw=raw, largest=largest)
    drawn, weight = tree.sample_weighted(4, 0.4, u=u)
    return drawn * 2, weight, tree.get(index), raw + largest, tree.sample(8)[0], tree.total()


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of torch's own compiler
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_compiled_graph_holds_the_tree_without_a_break(make, backend):
    tree, plain = _tree(make), _tree(make)
    device = tree.device
    arguments = [
        torch.tensor([1, 2, 3, 2], device=device),
        torch.tensor([5.0, 6.0, 7.0, 8.0], device=device),
        torch.tensor([1.0, -2.0, 3.0], device=device),
        torch.rand(4, dtype=torch.float64, device=device),
    ]
    beside = [(torch.zeros(1000, device=device), torch.zeros((), device=device)) for _ in range(2)]
    compiled = torch.compile(_step, fullgraph=True, backend=backend)
    got, expected = compiled(tree, *arguments, *beside[0]), _step(plain, *arguments, *beside[1])
    for mine, theirs in zip(got[:4], expected[:4], strict=True):
        assert torch.equal(mine, theirs)
    assert torch.equal(got[-1], expected[-1])
    assert torch.equal(tree.buffer, plain.buffer)
    assert torch.equal(beside[0][0], beside[1][0])
    tree.check()


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_one_compiled_graph_serves_batches_of_every_size_and_other_trees(make):
    tree = _tree(make)

    def step(tree, n, error, raw):
        index, weight = tree.sample_weighted(n, 0.4, stratified=True)
        tree.update_from_errors(index, error, 1e-6, 0.6, raw=raw, rows=1000)
        return index, weight

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    raw = torch.zeros(1000, device=tree.device)
    for n in (4, 5, 64, 1500, 4):
        index, weight = compiled(tree, n, torch.ones(n, device=tree.device), raw)
        assert index.shape == weight.shape == (n,)
        assert (raw[index] == 1).all()
    # A power is not rounded the same by every processor.
    torch.testing.assert_close(tree.get(index), torch.full((4,), (1 + 1e-6) ** 0.6, device=tree.device))
    other = _tree(make, 2000)
    index, _ = compiled(other, 64, torch.ones(64, device=tree.device), torch.zeros(2000, device=tree.device))
    assert (index[1:] >= index[:-1]).all()
    other._error.zero_()  # rows above 1000 were refused
    tree.check()


def test_the_operators_are_as_they_declare(make):
    tree = _tree(make, 100)
    index, ones = torch.tensor([1, 2], device=tree.device), torch.ones(2, device=tree.device)
    raw, largest = torch.zeros(100, device=tree.device), torch.zeros((), device=tree.device)
    ops, checks = torch.ops.rl_prio_cuda, ["test_schema", "test_faketensor"]
    places = tree.buffer, tree._work, 100, 32

    def check(name, *arguments):
        torch.library.opcheck(getattr(ops, name), (*places, *arguments), test_utils=checks)

    check("tree_set", index, ones, 100)
    check("tree_set_errors", index, ones, 0.1, 0.6, None, None, 100)
    check("tree_set_errors", index, ones, 0.1, 0.6, raw, largest, 100)
    check("tree_get", index)
    check("tree_sample", torch.rand(5, dtype=torch.float64, device=tree.device), False, 0.4)
    check("tree_sample", torch.rand(5, dtype=torch.float64, device=tree.device), True, None)


def test_a_cpu_raises_with_the_alternative():
    with pytest.raises(ValueError, match="NativePriorityTree"):
        CudaPriorityTree(10, device="cpu")
