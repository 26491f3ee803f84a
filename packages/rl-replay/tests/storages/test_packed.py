"""Storages whose rows lie side by side in memory behave as those that keep each key by itself."""

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from rl.replay import LazyTensorStorage, TensorDictPrioritizedReplayBuffer, TensorDictReplayBuffer

# offsets of entries are checked, and small storages are packed, too
from rl.replay._layout import Column
from rl.replay.storages import _tensor as _interleaved
from rl.replay.storages._tensor import Interleaved

DTYPES = [torch.bool, torch.uint8, torch.float16, torch.int32, torch.float32, torch.float64, torch.complex128]
ROWS = [(), (1,), (3,), (2, 3), (17,), (1, 1, 5)]


@pytest.fixture(autouse=True)
def _small_storages_too(monkeypatch):
    monkeypatch.setattr(_interleaved, "_CACHED", 0)


def rows(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    td = TensorDict(
        obs=torch.randn(count, 17, generator=generator),
        action=torch.randint(5, (count,), generator=generator, dtype=torch.uint8),
        image=torch.randint(255, (count, 40, 40), generator=generator, dtype=torch.uint8),
        empty=torch.zeros(count, 0),
        batch_size=[count],
    )
    td["next"] = TensorDict(
        obs=torch.randn(count, 17, generator=generator, dtype=torch.float64),
        done=torch.rand(count, 1, generator=generator) < 0.2,
        batch_size=[count],
    )
    return td


def same(left, right):
    keys = set(left.keys(True, True))
    return keys == set(right.keys(True, True)) and all(torch.equal(left.get(key), right.get(key)) for key in keys)


def block_of(storage):
    return storage._block


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(DTYPES), st.sampled_from(ROWS)), min_size=1, max_size=9),
    st.integers(1, 40),
)
def test_entries_are_aligned_and_do_not_overlap(kinds, count):
    columns = {str(i): Column(torch.Size(row), dtype) for i, (dtype, row) in enumerate(kinds)}
    memory = Interleaved(columns, count)
    expected = {}
    for key, column in columns.items():
        cell = memory.cell(key)
        assert (cell.shape, cell.dtype) == ((count, *column.shape), column.dtype)
        assert cell.data_ptr() % column.dtype.itemsize == 0
        assert count == 1 or cell.stride(0) * column.dtype.itemsize == memory.block.shape[1]
        expected[key] = torch.randint(0, 2, cell.shape).to(column.dtype)
        cell.copy_(expected[key])
    for key, value in expected.items():
        assert torch.equal(memory.cell(key), value)
    size = sum(column.shape.numel() * column.dtype.itemsize for column in columns.values())
    assert size <= memory.block.shape[1] <= max(size * 9 / 8, size + 16)


def test_short_entries_share_rows_and_images_do_not():
    storage = LazyTensorStorage(50)
    storage.set(torch.arange(20), rows(20))
    memory = block_of(storage)
    assert {"obs", "action", ("next", "obs"), ("next", "done")} == {key for key in storage._cells if key in memory}
    assert storage._cells["image"].is_contiguous()
    assert same(storage.get(torch.arange(20)), rows(20))


def test_small_storages_and_single_entries_are_not_interleaved(monkeypatch):
    one = LazyTensorStorage(50)
    one.set(torch.arange(20), torch.arange(20))
    assert block_of(one) is None
    monkeypatch.undo()
    small = LazyTensorStorage(50)
    small.set(torch.arange(20), rows(20))
    assert block_of(small) is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_what_would_leave_much_of_a_row_unused_is_kept_apart(dtype):
    storage = LazyTensorStorage(50)
    one = {"x": torch.zeros(9, dtype=dtype), "flag": torch.zeros(9, dtype=torch.bool)}
    storage.set(torch.arange(9), TensorDict(one, batch_size=[9]))
    assert block_of(storage) is None


def test_where_memory_for_all_entries_at_once_is_refused_each_gets_its_own(monkeypatch):
    real, refused = torch.empty, []

    def empty(shape, *, dtype=None, device=None):
        if dtype is torch.uint8 and shape[0] == 50 and len(shape) == 2:
            refused.append(shape)
            raise RuntimeError("can't allocate memory")
        return real(shape, dtype=dtype, device=device)

    monkeypatch.setattr(torch, "empty", empty)
    storage = LazyTensorStorage(50)
    storage.set(torch.arange(20), rows(20))
    assert len(refused) == 1
    assert block_of(storage) is None
    assert same(storage.get(torch.arange(20)), rows(20))


def test_a_layout_that_has_no_room_leaves_the_rows_as_they_were():
    storage, other = LazyTensorStorage(50), LazyTensorStorage(50)
    storage.set(torch.arange(20), rows(20))
    other.set(torch.arange(20), TensorDict(obs=torch.ones(20, 3), action=torch.ones(20), batch_size=[20]))
    state, before = other.state_dict(), block_of(storage)
    state["layout"]["columns"].append(["image", [2**40, 2**10], "torch.uint8"])
    state["layout"]["root"]["columns"].append(["image", "image"])
    state["cells"].append(["image", torch.zeros(1, dtype=torch.uint8).expand(20, 2**40, 2**10)])
    with pytest.raises(RuntimeError):
        storage.load_state_dict(state)
    assert block_of(storage) is before
    again = pickle.loads(pickle.dumps(storage))
    assert same(again.get(torch.arange(20)), rows(20))


def test_reads_and_writes():
    storage, expected = LazyTensorStorage(50), rows(50)
    storage.set(torch.arange(50), expected.clone())
    assert block_of(storage) is not None
    generator = torch.Generator().manual_seed(3)
    for turn in range(5):
        index = torch.randperm(50, generator=generator)[:12]
        new = rows(12, seed=turn + 1)
        storage.set(index, new)
        expected[index] = new
        drawn = torch.randint(50, (30,), generator=generator)
        assert same(storage.get(drawn), expected[drawn])
        assert same(storage.get(slice(3, 30, 4)), expected[3:30:4])
        assert torch.equal(storage.columns(["obs"], drawn.view(5, 6))["obs"], expected["obs"][drawn].view(5, 6, 17))
        assert torch.equal(storage.columns([("next", "done")])["next", "done"], expected["next", "done"])
    begin = torch.tensor([4, 40, 4])
    places = (begin.unsqueeze(1) + torch.arange(9)).flatten()
    assert same(storage.get_runs(places, begin), expected[places])
    with pytest.raises(IndexError, match="index 50 is outside"):
        storage.get(torch.tensor([3, 50]))


@pytest.mark.parametrize("again", [copy.deepcopy, lambda storage: pickle.loads(pickle.dumps(storage))])
def test_copies_are_whole_and_their_own(again):
    storage = LazyTensorStorage(50)
    storage.set(torch.arange(20), rows(20))
    other = again(storage)
    storage.set(torch.arange(20), rows(20, seed=1))
    assert same(other.get(torch.arange(20)), rows(20))
    other.set(torch.tensor([3]), rows(1, seed=2))
    assert same(other.get(torch.tensor([3])), rows(1, seed=2))
    assert other.get(3)["obs"].equal(other._cells["obs"][3])


def test_a_pickle_holds_rows_once():
    storage = LazyTensorStorage(1000)
    storage.set(torch.arange(1000), rows(1000).exclude("image"))
    assert len(pickle.dumps(storage)) < 1.2 * block_of(storage).block.nbytes


def test_states_fit_both_kinds(tmp_path, monkeypatch):
    def make():
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(50), batch_size=8)
        buffer.extend(rows(20, seed=5))
        return buffer

    near = make()
    monkeypatch.setattr(_interleaved, "_CACHED", 2**22)
    apart = make()
    assert block_of(near.storage) is not None
    assert block_of(apart.storage) is None
    near.extend(rows(10))
    near.dumps(tmp_path / "near")
    for load in (lambda: apart.load_state_dict(near.state_dict()), lambda: apart.loads(tmp_path / "near")):
        apart.empty()
        load()
        assert same(apart[:], near[:])
    near.empty()
    near.loads(tmp_path / "near")
    assert same(near[:], apart[:])
    assert all(part.is_contiguous() for _, part in near.state_dict()["storage"]["cells"])


def test_a_sample_is_of_the_rows_that_its_index_names():
    buffer = TensorDictPrioritizedReplayBuffer(alpha=0.7, beta=0.5, storage=LazyTensorStorage(64), batch_size=16)
    data = rows(64)
    buffer.extend(data)
    sample, info = buffer.sample(return_info=True)
    assert same(sample.exclude("index", "priority_weight"), data[sample["index"]])
    assert sample["index"] is info["index"]
    assert sample["priority_weight"] is info["priority_weight"]
    assert sample.batch_size == (16,)
