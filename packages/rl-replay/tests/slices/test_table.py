"""What the table of trajectories survives, and what is refused before anything is written."""

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import ArgumentError, CheckpointError, ContractError, ShapeError
from rl.replay import (
    ImmutableDatasetWriter,
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
    TensorStorage,
)

STORAGES = {"list": ListStorage, "tensor": LazyTensorStorage, "memmap": LazyMemmapStorage}


def rows(start, stop, episode=5):
    x = torch.arange(start, stop)
    done = (x % episode == episode - 1).unsqueeze(-1)
    return TensorDict({"x": x, "next": TensorDict({"done": done}, x.shape)}, x.shape)


def make(storage=None, **arguments):
    arguments.setdefault("sampler", SliceSampler(slice_len=3))
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(20) if storage is None else storage,
        batch_size=arguments.pop("batch_size", 30),
        generator=torch.Generator().manual_seed(0),
        **arguments,
    )


def begins(buffer, n=600, length=3):
    x = buffer.sample(n)["x"].view(-1, length)
    assert x.diff(dim=1).eq(1).all()
    return set(x[:, 0].tolist())


@pytest.mark.parametrize("storage", STORAGES.values(), ids=STORAGES)
def test_every_storage_serves(storage):
    buffer = make(storage(20))
    for start in range(0, 60, 6):
        buffer.extend(rows(start, start + 6))
    assert begins(buffer) == {40, 41, 42, 45, 46, 47, 50, 51, 52, 55, 56, 57}


@pytest.mark.parametrize("writes", [[20], [20, 20, 20], [19, 1, 20], [7, 20, 13]])
def test_batches_as_large_as_the_ring(writes):
    buffer, at = make(), 0
    for count in writes:
        buffer.extend(rows(at, at + count))
        at += count
    live = range(at - 20, at)
    assert begins(buffer) == {x for x in live if x % 5 <= 2 and x + 2 < at}


def test_a_batch_larger_than_the_ring_is_refused_and_the_table_stays():
    buffer = make()
    buffer.extend(rows(0, 10))
    with pytest.raises(ShapeError, match="a batch of 21 rows for a storage of 20"):
        buffer.extend(rows(10, 31))
    buffer.extend(rows(10, 20))
    assert begins(buffer) == {x for x in range(20) if x % 5 <= 2}


def test_a_batch_that_the_storage_refuses_leaves_the_table():
    buffer = make()
    buffer.extend(rows(0, 8))
    with pytest.raises(ContractError):
        buffer.extend(rows(8, 10).set("y", torch.zeros(2)))
    buffer.extend(rows(8, 15))
    assert begins(buffer) == {x for x in range(15) if x % 5 <= 2}


def test_rows_added_past_the_buffer_are_found():
    buffer = make()
    buffer.storage.set(torch.arange(10), rows(0, 10))
    assert begins(buffer) == {0, 1, 2, 5, 6, 7}
    buffer.extend(rows(10, 14))  # an episode begins there
    assert begins(buffer) == {0, 1, 2, 5, 6, 7, 10, 11}
    buffer.extend(rows(14, 16))
    assert begins(buffer) == {0, 1, 2, 5, 6, 7, 10, 11, 12}


def test_a_storage_that_is_filled_already():
    storage = LazyTensorStorage(20)
    storage.set(torch.arange(13), rows(0, 13))
    buffer = make(storage)
    assert begins(buffer) == {0, 1, 2, 5, 6, 7, 10}
    buffer.extend(rows(13, 18))  # whether it continues row 12 is not known
    assert begins(buffer) == {0, 1, 2, 5, 6, 7, 10, 15}


def test_a_dataset():
    buffer = make(TensorStorage(rows(0, 17)), writer=ImmutableDatasetWriter())
    assert begins(buffer) == {0, 1, 2, 5, 6, 7, 10, 11, 12}
    with pytest.raises(ContractError, match="fixed dataset"):
        buffer.extend(rows(0, 1))
    assert begins(buffer) == {0, 1, 2, 5, 6, 7, 10, 11, 12}


def test_a_dataset_that_is_overwritten():
    buffer = make(TensorStorage(rows(0, 20)))
    buffer.extend(rows(100, 107))
    assert begins(buffer) == {100, 101, 102, 7, 10, 11, 12, 15, 16, 17}


def test_an_old_ring_in_a_new_buffer():
    old = make()
    for start in range(0, 27, 3):
        old.extend(rows(start, start + 3, 100))
    buffer = make(old.storage)
    buffer.writer.load_state_dict(old.writer.state_dict())
    buffer.extend(rows(27, 29, 100))  # says where the ring is written
    seen = begins(buffer)
    assert 27 not in seen
    assert seen <= set(range(9, 27))


class Anywhere:
    """A writer that, once the storage is full, takes places at random."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(3)

    def claim(self, storage, count):
        if len(storage) < storage.max_size:
            return torch.arange(len(storage), len(storage) + count)
        return torch.randperm(storage.max_size, generator=self.generator)[:count]

    def extended(self, index, data):
        pass

    def empty(self):
        pass

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def test_a_writer_without_order():
    buffer = make(writer=Anywhere())
    for start in range(0, 60, 4):
        buffer.extend(rows(start, start + 4))
        x, done = buffer[:]["x"], buffer[:]["next", "done"].flatten().tolist()
        for index in buffer.sample(60)["index"].view(-1, 3).tolist():
            assert [(index[0] + k) % 20 for k in range(3)] == index
            assert not any(done[row] for row in index[:-1])
    assert len(x) == 20


class Foreign:
    """A storage of another package: the protocol, and nothing more."""

    def __init__(self, size):
        self._inner = LazyTensorStorage(size)
        self.max_size = size
        self.wrapped = ("get", "set", "count", "empty", "state_dict", "load_state_dict")

    def __len__(self):
        return len(self._inner)

    def __getattr__(self, name):
        if name in self.wrapped:
            return getattr(self._inner, name)
        raise AttributeError(name)


def test_storages_of_others_serve():
    storage = Foreign(20)
    storage.set(torch.arange(6), rows(0, 6))
    buffer = make(storage)
    for start in range(6, 30, 6):
        buffer.extend(rows(start, start + 6))
    assert begins(buffer) == {x for x in range(10, 30) if x % 5 <= 2}
    index, info = buffer.sampler.sample(storage, 6)
    assert info["slices"].tolist() == [3, 3]
    assert index.shape == (6,)


def test_a_sampler_alone():
    storage, sampler = LazyTensorStorage(20), SliceSampler(slice_len=3)
    for start in (0, 4, 8):  # told before any storage was seen
        index = torch.arange(start, start + 4)
        storage.set(index, rows(start, start + 4))
        sampler.extended(index, rows(start, start + 4))
    index, info = sampler.sample(storage, 300)
    assert set(index.view(-1, 3)[:, 0].tolist()) == {0, 1, 2, 5, 6, 7}
    assert (info["slices"] == 3).all()
    info["index"] = index
    data = sampler.postprocess(storage.get(index), info)
    assert data["next", "done"].view(-1, 3)[:, 2].all()
    assert "slices" not in info
    assert storage.get(slice(None))["next", "done"].sum() == 2


def test_emptied_buffers_are_like_new_ones():
    buffer = make()
    buffer.extend(rows(0, 17))
    buffer.empty()
    with pytest.raises(ContractError, match="the buffer is empty"):
        buffer.sample()
    buffer.extend(rows(100, 107, 4))
    assert begins(buffer) == {100, 101, 104}


@pytest.mark.parametrize("disk", [False, True])
@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize(
    "sampler",
    [
        lambda: SliceSampler(slice_len=3),
        lambda: SliceSampler(num_slices=2, strict_length=False, span=1),
        lambda: SliceSampler(num_slices=2, strict_length=False, pad_output=True),
        lambda: SliceSamplerWithoutReplacement(num_slices=2),
    ],
    ids=["with", "span", "padded", "passes"],
)
def test_a_resumed_buffer_goes_on_as_the_first_would_have(sampler, prefetch, disk, tmp_path):
    one, two = (make(sampler=sampler(), prefetch=prefetch, batch_size=6) for _ in range(2))
    for start in range(0, 35, 7):
        one.extend(rows(start, start + 7))
        one.sample()
    if disk:
        one.dumps(tmp_path)
        two.loads(tmp_path)
    else:
        two.load_state_dict(one.state_dict())
    for start in range(35, 70, 7):
        for _ in range(3):
            first, second = one.sample(), two.sample()
            assert set(first.keys(include_nested=True)) == set(second.keys(include_nested=True))
            assert (first == second).all()
        one.extend(rows(start, start + 7))
        two.extend(rows(start, start + 7))


def test_states_of_others_are_refused():
    buffer = make()
    buffer.extend(rows(0, 9))
    state = buffer.sampler.state_dict()
    with pytest.raises(CheckpointError, match="lacks capacity, table"):
        SliceSampler(slice_len=2).load_state_dict({})
    other = make(LazyTensorStorage(7))
    other.extend(rows(0, 7))
    with pytest.raises(CheckpointError, match="samples from 7 rows at most, the state is of a storage of 20"):
        other.sampler.load_state_dict(state)
    assert begins(other) == {0, 1, 2}


def test_prefetched_slices_hold_the_rows_of_their_draw():
    buffer = make(prefetch=3)
    buffer.extend(rows(0, 20))
    buffer.sample()
    for start in range(20, 200, 4):
        buffer.extend(rows(start, start + 4))
        sample = buffer.sample()
        assert sample["x"].view(-1, 3).diff(dim=1).eq(1).all()
        assert sample["next", "done"].view(-1, 3)[:, -1].all()
        assert not sample["next", "done"].view(-1, 3)[:, :-1].any()


def refused(data, text, storage=None, **sampler):
    buffer = make(storage, sampler=SliceSampler(slice_len=2, **sampler))
    with pytest.raises(ContractError, match=text):
        buffer.extend(data)
    assert len(buffer) == buffer.write_count == 0


def test_rows_that_do_not_say_where_they_end():
    bare = rows(0, 6).exclude("next")
    refused(
        bare, r"under \('next', 'done'\), .* \(end_key\) or \('collector', 'traj_ids'\), 'episode' \(traj_key\), and"
    )
    refused(bare, r"they have: 'x'")
    refused(
        rows(0, 6),
        r"reads 'episodes', and the rows do not have it \(they have: 'x', \('next', 'done'\)\)",
        traj_key="episodes",
    )
    refused(rows(0, 6), r"reads \('next', 'end'\), and", end_key=("next", "end"))


@pytest.mark.parametrize("steps", [1, 2])
def test_rows_of_several_steps_are_refused(steps):
    several = rows(0, 6).reshape(-1, steps)
    refused(several, rf"the batch has shape \[{6 // steps}, {steps}\] for {6 // steps} rows, expected flags")
    refused(list(several), rf"a row has shape \[{steps}\] for {6 // steps} rows", ListStorage(9))


def test_flags_of_several_agents_are_refused():
    several = rows(0, 3)
    several["next", "done"] = several["next", "done"].expand(3, 2)
    refused(
        several, r"\('next', 'done'\) has shape \[3, 2\] for 3 rows, expected flags \[3\] or \[3, 1\]: a row is one"
    )


@pytest.mark.parametrize("ndim", [1, 2])
def test_any_flag_of_a_group_of_agents_ends_a_trajectory(ndim):
    ends = torch.zeros(2, 8, 3, 1, dtype=torch.bool)
    ends[0, 2, 1] = ends[0, 5, 0] = ends[1, 3] = ends[:, 7] = True
    data = TensorDict({"x": torch.arange(16).view(2, 8), "next": {"agents": {"done": ends}}}, batch_size=[2, 8])
    sampler = SliceSampler(slice_len=2, end_key=("next", "agents", "done"))
    buffer = make(LazyTensorStorage(16, ndim=ndim), sampler=sampler, batch_size=200)
    buffer.extend(data.reshape(-1) if ndim == 1 else data)
    starts = buffer.sample()["x"].view(-1, 2)
    assert (starts.diff() == 1).all()
    assert set(starts[:, 0].tolist()) == {0, 1, 3, 4, 6, 8, 9, 10, 12, 13, 14}


def test_plain_tensors_are_refused():
    buffer = ReplayBuffer(storage=LazyTensorStorage(9), sampler=SliceSampler(slice_len=2))
    with pytest.raises(ContractError, match="rows of type Tensor have no entries: store TensorDicts"):
        buffer.extend(torch.zeros(5))
    assert len(buffer) == 0


def test_rows_some_of_which_have_no_flag_are_refused():
    buffer = make(ListStorage(9, ragged=True))
    with pytest.raises(ContractError, match=r"1 of 3 rows lack \('next', 'done'\)"):
        buffer.extend([rows(0, 1)[0], rows(1, 2)[0], rows(2, 3)[0].exclude("next")])


@pytest.mark.parametrize("count", [2, 3])  # the second ring is full
@pytest.mark.parametrize("ids", [False, True])
def test_environments_in_files_are_known_after_the_state_is_loaded(tmp_path, ids, count):
    def reopen(**arguments):
        return make(LazyMemmapStorage(12, scratch_dir=tmp_path, ndim=2, existsok=True), **arguments)

    def batch(number):
        x = torch.tensor([[0], [100]]) + torch.arange(3 * number, 3 * number + 3)
        data = TensorDict({"x": x, "next": {"done": torch.zeros(2, 3, 1, dtype=torch.bool)}}, batch_size=[2, 3])
        return data.set("episode", x // 100) if ids else data

    buffer = reopen()
    for number in range(count):
        buffer.extend(batch(number))
    buffer.dumps(tmp_path)
    again = reopen()
    again.loads(tmp_path)
    assert torch.equal(again.sample()["x"], buffer.sample()["x"])
    again.extend(batch(count))
    x = again.sample(600)["x"].view(-1, 3)
    assert (x.diff() == 1).all()
    assert x.max() == 102 + 3 * count
    if ids:
        alone = reopen()  # without its state
        alone.extend(batch(9))
        x = alone.sample(600)["x"].view(-1, 3)
        assert (x[:, 0] // 100 == x[:, 2] // 100).all()


def test_environments_written_past_the_buffer_need_trajectory_ids():
    storage = LazyTensorStorage(12, ndim=2)
    storage.set(torch.arange(12), rows(0, 12).reshape(3, 4))
    with pytest.raises(ContractError, match="ndim=2 were written past the buffer"):
        make(storage).sample()
    named = LazyTensorStorage(12, ndim=2)
    named.set(torch.arange(12), rows(0, 12, 100).set("episode", torch.arange(12) // 4).reshape(3, 4))
    assert begins(make(named)) == {0, 1, 4, 5, 8, 9}


def test_ids_tell_the_environments_of_a_new_buffer_apart():
    old, begin = make(LazyTensorStorage(24, ndim=2)), 0
    for envs, steps in ((3, 4), (2, 3)):
        ids = torch.arange(envs).unsqueeze(1).expand(envs, steps)
        x = 100 * ids + torch.arange(begin, begin + steps)
        old.extend(TensorDict({"x": x, "episode": ids}, x.shape))
        begin += steps
    buffer = make(old.storage)
    assert begins(buffer) == {0, 1, 2, 100, 101, 102, 200, 201}  # no slice where the number of environments changes
    ids = torch.tensor([[0], [1]]).expand(2, 3)
    buffer.extend(TensorDict({"x": 1000 * (1 + ids) + torch.arange(3), "episode": ids}, [2, 3]))
    assert begins(buffer) == {0, 1, 2, 100, 101, 102, 200, 201, 1000, 2000}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "exactly one of num_slices and slice_len, got num_slices=None and slice_len=None"),
        ({"num_slices": 2, "slice_len": 3}, "exactly one of num_slices and slice_len"),
        ({"slice_len": 0}, "slice_len must be at least 1, got 0"),
        ({"num_slices": 1.5}, "num_slices must be an integer, got 1.5"),
        ({"slice_len": 3, "span": 3}, "span=3 must be less than the 3 steps of a slice"),
        ({"slice_len": 3, "span": -1}, "span must be at least 0, got -1"),
        ({"slice_len": 3, "span": (1, 1, 1)}, "span is True, False, a number of steps, or a pair"),
        ({"slice_len": 3, "end_key": 5}, "end_key is a string or a tuple of strings, got 5"),
        ({"slice_len": 3, "init_key": ()}, "init_key is a string or a tuple of strings"),
    ],
)
def test_arguments_out_of_range(arguments, text):
    with pytest.raises(ArgumentError, match=text):
        SliceSampler(**arguments)


def test_what_cannot_be_drawn():
    buffer = make()
    with pytest.raises(ContractError, match="SliceSampler: the buffer is empty"):
        buffer.sample()
    buffer.extend(rows(0, 7))
    with pytest.raises(ArgumentError, match=r"batch_size=10 is not a multiple of slice_len=3; use 9, for example"):
        buffer.sample(10)
    long = make(sampler=SliceSampler(num_slices=2))
    long.extend(rows(0, 7))
    with pytest.raises(ContractError, match="none of the 2 stored trajectories has 6 steps, the longest has 5; sample"):
        long.sample(12)
    with pytest.raises(ContractError, match="no priorities"):
        buffer.update_priority(torch.tensor([0]), torch.tensor([1.0]))
    spanned = make(sampler=SliceSampler(num_slices=2, span=4))
    spanned.extend(rows(0, 7))
    with pytest.raises(ArgumentError, match="span=4 must be less than the 2 steps of a slice"):
        spanned.sample(4)
    assert spanned.sample(10)["is_init"].sum() == 2


def test_a_buffer_by_priority_is_as_it_was():
    buffer = TensorDictPrioritizedReplayBuffer(alpha=1.0, beta=1.0, storage=LazyTensorStorage(9), backend="torch")
    buffer.extend(rows(0, 5))
    assert "is_init" not in buffer.sample(4).keys()


def test_repr_tells_what_is_known():
    buffer = make()
    assert "0 trajectories, read from ('next', 'done')" in repr(buffer)
    buffer.extend(rows(0, 7))
    assert "SliceSampler(slice_len=3, strict_length=True, pad_output=False, span=(False, False), 2 traj" in repr(buffer)
    assert "no storage yet" in repr(SliceSampler(num_slices=3))
