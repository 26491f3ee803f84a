"""Slices that are copied as runs of rows, and rows one by one, against plain indexing."""

import copy
import pickle

import pytest
import torch
from tensordict import NonTensorStack, TensorDict, lazy_stack

from rl.core.errors import ContractError, ShapeError
from rl.plugins.replay import rl_row_gather
from rl.replay import (
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
    TensorStorage,
)

# storages use another row gather, with the plugins that are installed
from rl.replay.storages import _rows as _tensor
from rl.testing import ToyRowGather, check_row_gather


def rows(start, stop, episode=10):
    x = torch.arange(start, stop)
    td = TensorDict(
        {"x": x, "wide": x.view(-1, 1, 1) + torch.arange(6).view(2, 3), "none": torch.zeros(len(x), 0)}, x.shape
    )
    td["next"] = TensorDict({"done": (x % episode == episode - 1).unsqueeze(-1), "x": x + 1}, x.shape)
    td["next", "truncated"] = torch.zeros_like(td["next", "done"])
    td["next", "terminated"] = td["next", "done"].clone()
    return td


def make(storage, **arguments):
    return TensorDictReplayBuffer(
        storage=storage,
        sampler=SliceSampler(**{"slice_len": 4, **arguments}),
        batch_size=80,
        generator=torch.Generator().manual_seed(0),
    )


def test_rows_and_runs_in_plain_torch_are_what_indexing_gives():
    check_row_gather(rl_row_gather)


def test_runs_of_rows_that_do_not_lie_in_line():
    turned, flat = torch.arange(180).view(3, 60).t(), torch.arange(60)
    begin = torch.tensor([36, 0, 5])
    found, places = rl_row_gather([turned, flat]).runs(40, begin, 4)
    assert places.tolist() == (begin.unsqueeze(1) + torch.arange(4)).flatten().tolist()
    assert (found == turned[places]).all()


def test_tensors_that_do_not_lie_in_line_are_copied_row_by_row():
    data = rows(0, 60)
    data["turned"] = torch.arange(180).view(3, 60).T
    buffer = make(TensorStorage(data))
    sample = buffer.sample()
    assert (sample["turned"] == data["turned"][sample["index"]]).all()


@pytest.mark.parametrize("arguments", [{}, {"pad_output": True}, {"strict_length": False, "slice_len": 16}])
def test_all_entries_of_a_sample_are_of_one_row(arguments):
    buffer = make(LazyTensorStorage(64), **arguments)
    for start in range(0, 300, 12):  # over the end of the ring again and again, trajectories over it, too
        buffer.extend(rows(start, start + 12))
        if start < 24:
            continue
        sample = buffer.sample()
        x, stored = sample["x"], buffer[:][sample["index"].flatten()].reshape(sample.batch_size)
        assert (stored["x"] == x).all()
        assert (sample["wide"] == x.view(*x.shape, 1, 1) + torch.arange(6).view(2, 3)).all()
        assert (sample["next", "x"] == x + 1).all()
        assert (sample["next", "terminated"].squeeze(-1) == (x % 10 == 9)).all()
        assert sample["none"].shape == (*x.shape, 0)


@pytest.mark.parametrize("sampler", [SliceSampler, SliceSamplerWithoutReplacement])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_seed_gives_the_same_slices_with_every_row_gather(monkeypatch, sampler, prefetch):
    makers = [None, ToyRowGather]
    buffers = []
    for make_rows in makers:
        if make_rows is not None:  # else rl-native, where it is installed
            monkeypatch.setattr(_tensor, "row_gather", make_rows)
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(64),
            sampler=sampler(slice_len=4),
            batch_size=20,
            prefetch=prefetch,
            generator=torch.Generator().manual_seed(0),
        )
        buffer.extend(rows(0, 12))
        buffers.append(buffer)
    over = 0
    for start in range(12, 300, 9):
        first, *others = [(buffer.sample(), buffer.sample()) for buffer in buffers]
        for buffer in buffers:
            buffer.extend(rows(start, start + 9))
        over += int((first[0]["index"].view(-1, 4).diff() < 0).any())
        for other in others:
            for mine, its in zip(first, other, strict=True):
                assert (mine == its).all()
                assert (mine["index"] == mine["x"] % 64).all()
    assert over  # slices went on at the front


@pytest.mark.parametrize("arguments", [{}, {"pad_output": True}, {"init_key": None, "truncated_key": None}])
def test_index_comes_with_the_rows_or_after_them(arguments):
    plain, named = rows(0, 40), rows(0, 40)
    named["index"] = TensorDict({"x": torch.zeros(40)}, [40])  # makes room for what the buffer writes
    for data in (plain, named):
        for kind in (TensorDictReplayBuffer, ReplayBuffer):
            sampler = SliceSampler(slice_len=4, **arguments)
            buffer = kind(storage=TensorStorage(data), sampler=sampler, batch_size=80)
            sample, info = buffer.sample(return_info=True)
            assert info["index"].shape == sample.batch_size
            assert (sample["x"] == info["index"]).all()
            if kind is TensorDictReplayBuffer:
                assert (sample["index"] == info["index"]).all()
            else:
                assert ("index" in sample.keys()) == (data is named)


def test_index_has_the_shape_of_a_row():
    x = torch.arange(40).view(-1, 1)
    data = TensorDict({"x": x, "next": TensorDict({"done": x % 10 == 9}, [40, 1])}, [40, 1])
    sample = make(TensorStorage(data)).sample()
    assert sample["index"].shape == (80, 1)
    assert (sample["index"] == sample["x"]).all()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_of_a_buffer_go_their_own_way(copied):
    storage, sampler = LazyTensorStorage(40), SliceSampler(slice_len=4)
    storage.set(torch.arange(40), rows(0, 40))
    sampler.attach(storage)
    sampler.sample(storage, 40)
    other_storage, other = copied((storage, sampler))
    again = rows(100, 120, 5)
    for each, one in ((storage, sampler), (other_storage, other)):
        index = torch.arange(20)
        batch = again if one is other else rows(40, 60)
        one.admit(batch)
        each.set(index, batch)
        one.extended(index, batch)
    assert set(storage.get(sampler.sample(storage, 4000)[0])["x"].tolist()) == set(range(20, 60))
    found = other_storage.get(other.sample(other_storage, 4000)[0])["x"].view(-1, 4)
    assert set(found.flatten().tolist()) == {*range(20, 40), *range(100, 120)}
    assert (found[found[:, 0] >= 100] // 5 == (found[found[:, 0] >= 100] // 5)[:, :1]).all()


def test_pickles_do_not_hold_memory_twice():
    storage = LazyTensorStorage(10_000)
    storage.set(torch.arange(10_000), rows(0, 10_000))
    before = len(pickle.dumps(storage))
    make(storage).sample()
    assert len(pickle.dumps(storage)) < 1.1 * before


@pytest.mark.parametrize("kind", [LazyTensorStorage, ListStorage])
@pytest.mark.parametrize(
    ("arguments", "key"), [({"init_key": ("x", "first")}, "first"), ({"init_key": "next"}, "next")]
)
def test_flags_do_not_push_stored_entries_out(kind, arguments, key):
    buffer = make(kind(40), **arguments)
    buffer.extend(rows(0, 40))
    with pytest.raises(ContractError, match=f"rows cannot get an entry .*{key}"):
        buffer.sample()


@pytest.mark.parametrize(
    "arguments",
    [
        {"init_key": ("agents", "is_init")},
        {"truncated_key": ("agents", "below", "truncated"), "end_key": ("next", "done"), "init_key": None},
    ],
)
@pytest.mark.parametrize("kind", [LazyTensorStorage, ListStorage])
def test_flags_do_not_go_where_rows_have_other_batches(kind, arguments):
    data = rows(0, 40)
    data["agents"] = TensorDict({"reward": torch.zeros(40, 3, 1)}, [40, 3])
    buffer = ReplayBuffer(storage=kind(40), sampler=SliceSampler(slice_len=4, **arguments), batch_size=8)
    buffer.extend(data)
    with pytest.raises((ShapeError, RuntimeError), match=r"\[3\] in each row|batch dimension mismatch"):
        buffer.sample()


@pytest.mark.parametrize("stored", [False, True])
def test_flags_are_written_into_tensordicts_that_are_stacked_lazily(stored):
    class Stacked:
        def __init__(self):
            self.own, self.max_size = ListStorage(40), 40

        def __getattr__(self, name):
            return getattr(self.own, name)

        def __len__(self):
            return len(self.own)

        def get(self, index):
            found = self.own.get(index)
            return lazy_stack(found) if isinstance(found, list) else found

    data = rows(0, 40)
    if stored:
        data["is_init"] = torch.zeros(40, 1, dtype=torch.bool)
    buffer = ReplayBuffer(storage=Stacked(), sampler=SliceSampler(slice_len=4), batch_size=80)
    buffer.extend(data)
    sample = buffer.sample()
    for key, step in (("is_init", 0), (("next", "done"), 3), (("next", "truncated"), 3)):
        assert (sample[key].view(20, 4) == (torch.arange(4) == step)).all()


def test_rows_with_objects_are_whole_tensordicts():
    data = rows(0, 40)
    data["name"] = NonTensorStack(*[f"step {step}" for step in range(40)])
    sample = make(LazyTensorStorage(40), pad_output=True)
    sample.extend(data)
    sample = sample.sample()
    assert sample["name"] == [[f"step {step}" for step in row] for row in sample["x"].tolist()]
    assert sample.get("name").device == sample.device == torch.device("cpu")


def test_another_default_device_does_not_matter():
    buffer = make(LazyTensorStorage(40), pad_output=True)
    buffer.extend(rows(0, 40))
    with torch.device("meta"):
        sample = buffer.sample()
    assert sample["collector", "mask"].all()
    assert sample["next", "truncated"][:, -1].all()


def test_samples_are_whole_tensordicts():
    buffer = make(LazyTensorStorage(40))
    buffer.extend(rows(0, 40))
    sample = buffer.sample()
    assert sample.device == torch.device("cpu")
    assert sample.names == sample["next"].names == ["time"]
    assert sample["next"].batch_size == (80,)
    assert (sample.clone() == sample).all()
    assert set(sample.to_tensordict().keys(include_nested=True)) == set(sample.keys(include_nested=True))
    assert sample.reshape(20, 4)["next", "x"].shape == (20, 4)
    sample["more"] = torch.zeros(80)
    assert torch.stack((sample, sample)).batch_size == (2, 80)
    with pytest.raises(RuntimeError):
        sample["wrong"] = torch.zeros(79)


def test_prefetched_slices_are_those_of_their_draw():
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(64),
        sampler=SliceSampler(slice_len=4),
        batch_size=80,
        prefetch=3,
        transform=lambda td: td,
    )
    for start in range(0, 640, 16):
        buffer.extend(rows(start, start + 16))
        sample, info = buffer.sample(return_info=True)
        x = sample["x"].view(20, 4)
        assert (x.diff(dim=1) == 1).all()
        assert (info["index"] == sample["x"] % 64).all()
        assert info["is_init"].view(20, 4).tolist() == [[True, False, False, False]] * 20
