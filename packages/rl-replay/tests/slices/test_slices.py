"""What is said about the rows of slices, and which keys and storages serve."""

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import ContractError
from rl.replay import LazyTensorStorage, ListStorage, ReplayBuffer, SliceSampler, TensorDictReplayBuffer, TensorStorage

NAMES = ("collector", "traj_ids")


def batch(done, start=0, names=None):
    """Rows ``[*B]`` that are numbered from `start` on, with the flags `done`."""
    done = torch.as_tensor(done, dtype=torch.bool)
    x = torch.arange(start, start + done.numel()).view(done.shape)
    td = TensorDict({"x": x, ("next", "done"): done.unsqueeze(-1)}, batch_size=done.shape)
    return td if names is None else td.set(NAMES, torch.as_tensor(names))


def buffer_of(done, *, size=None, batch_size=None, names=None, kind=TensorDictReplayBuffer, **sampler):
    data = batch(done, names=names)
    buffer = kind(
        storage=LazyTensorStorage(size or data.numel(), ndim=data.ndim),
        sampler=SliceSampler(**sampler),
        batch_size=batch_size,
        generator=torch.Generator().manual_seed(0),
    )
    buffer.extend(data)
    return buffer


def every(n, rows):
    """Flags of episodes of n steps."""
    return [step % n == n - 1 for step in range(rows)]


def test_a_sample_is_flat_and_marked():
    buffer = buffer_of(every(5, 23), num_slices=4, batch_size=12)
    sample, info = buffer.sample(return_info=True)
    assert sample.batch_size == (12,)
    assert sample["x"].view(4, 3).diff(dim=1).eq(1).all()
    last = torch.tensor([[False, False, True]] * 4).view(12, 1)
    assert sample["next", "truncated"].equal(last)
    assert (sample["next", "done"] == last | (sample["x"] % 5 == 4).unsqueeze(-1)).all()
    assert sample["next", "terminated"].equal((sample["x"] % 5 == 4).unsqueeze(-1))  # nothing else said so
    assert sample["is_init"].equal(torch.tensor([[True, False, False]] * 4).view(12, 1))
    assert set(info) == {"index", ("next", "truncated"), ("next", "done"), ("next", "terminated"), "is_init"}
    assert "is_init" not in buffer[:].keys()
    assert buffer[:]["next", "done"].flatten().tolist() == every(5, 23)  # what is stored stays as it was


def test_stored_flags_count_and_shapes_are_kept():
    data = batch(every(4, 20))
    data["next", "truncated"] = data["next", "done"].clone()
    data["next", "terminated"] = torch.zeros_like(data["next", "done"])
    data["is_init"] = torch.zeros(20, dtype=torch.bool)
    data["is_init"][::4] = True
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20), sampler=SliceSampler(slice_len=2))
    buffer.extend(data)
    sample = buffer.sample(40)
    assert not sample["next", "terminated"].any()
    assert sample["next", "truncated"].view(20, 2).tolist() == [[False, True]] * 20
    assert sample["is_init"].view(20, 2).tolist() == [[True, False]] * 20


def test_a_slice_that_is_cut_off_is_not_terminated():
    data = batch([False] * 10)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10), sampler=SliceSampler(slice_len=2))
    buffer.extend(data)
    sample = buffer.sample(20)
    assert sample["next", "done"].view(10, 2).tolist() == [[False, True]] * 10
    assert not sample["next", "terminated"].any()


def test_a_plain_buffer_marks_its_samples_too():
    sample = buffer_of(every(5, 20), slice_len=2, kind=ReplayBuffer).sample(6)
    assert sample["is_init"].flatten().tolist() == [True, False] * 3
    assert sample["next", "truncated"].flatten().tolist() == [False, True] * 3
    assert "index" not in sample.keys()


def test_marks_may_be_left_out_or_elsewhere():
    sample = buffer_of(every(5, 20), slice_len=2, truncated_key=None, init_key=None).sample(6)
    assert set(sample.keys(include_nested=True)) == {"x", "next", ("next", "done"), "index"}
    sample = buffer_of(every(5, 20), slice_len=2, truncated_key="cut", init_key=("begin", "here")).sample(6)
    assert sample["cut"].flatten().tolist() == [False, True] * 3
    assert sample["begin", "here"].flatten().tolist() == [True, False] * 3
    assert sample["done"].shape == (6, 1)


@pytest.mark.parametrize("arguments", [{}, {"pad_output": True, "strict_length": False}])
def test_flags_without_a_dimension_of_their_own_stay_so(arguments):
    data = batch(every(5, 20))
    data["next", "done"] = data["next", "done"].squeeze(-1)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20), sampler=SliceSampler(slice_len=3, **arguments))
    buffer.extend(data)
    sample = buffer.sample(30)
    assert sample["is_init"].shape == sample["next", "done"].shape == sample.batch_size
    assert sample["is_init"].view(10, 3).tolist() == [[True, False, False]] * 10
    assert sample["next", "truncated"].view(10, 3).tolist() == [[False, False, True]] * 10


@pytest.mark.parametrize(("one", "other"), [("done", "truncated"), ("truncated", "done")])
def test_flags_of_several_shapes(one, other):
    data = batch(every(5, 20))
    done = data["next", "done"]
    data["next"] = TensorDict({one: done, other: done.squeeze(-1).clone()}, batch_size=[20])
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20), sampler=SliceSampler(slice_len=5))
    buffer.extend(data)
    sample = buffer.sample(30)["next"]
    assert sample[one].shape == (30, 1)
    assert sample[other].shape == (30,)
    assert sample["truncated"].view(6, 5).tolist() == [[False] * 4 + [True]] * 6
    assert not sample["terminated"].any()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float64])
def test_flags_and_names_of_other_dtypes(dtype):
    data = batch(every(5, 20)).set("episode", (torch.arange(20) // 10).to(dtype))
    data["next", "done"] = data["next", "done"].to(dtype)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20), sampler=SliceSampler(slice_len=5))
    buffer.extend(data)
    sample = buffer.sample(30)
    assert sample["x"].view(6, 5).remainder(5).tolist() == [list(range(5))] * 6
    assert sample["next", "done"].dtype is torch.bool


@pytest.mark.parametrize("kind", [ReplayBuffer, TensorDictReplayBuffer])
@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
def test_batches_of_a_collate_fn_are_marked(kind, storage):
    def collate(rows):
        return torch.stack(rows) if isinstance(rows, list) else rows

    buffer = kind(storage=storage(20), sampler=SliceSampler(slice_len=2), collate_fn=collate, batch_size=6)
    buffer.extend(batch(every(5, 20)))
    sample = buffer.sample()
    assert sample["is_init"].flatten().tolist() == [True, False] * 3
    assert sample["next", "done"].flatten()[1::2].all()
    assert ("index" in sample.keys()) == (kind is TensorDictReplayBuffer)


def test_slices_that_a_collate_fn_sets_upright_are_marked_and_fewer_rows_refused():
    def make(collate):
        sampler = SliceSampler(slice_len=2)
        buffer = ReplayBuffer(storage=LazyTensorStorage(20), sampler=sampler, collate_fn=collate, batch_size=6)
        buffer.extend(batch(every(5, 20)))
        return buffer

    sample = make(lambda rows: rows.reshape(3, 2)).sample()
    assert sample["is_init"].tolist() == [[[True], [False]]] * 3
    with pytest.raises(ContractError, match=r"collate_fn returned a batch \[5\] for 6 rows"):
        make(lambda rows: rows[1:]).sample()


def test_padded_samples_of_a_list():
    sampler = SliceSampler(slice_len=5, strict_length=False, pad_output=True)
    buffer = TensorDictReplayBuffer(storage=ListStorage(20), sampler=sampler, batch_size=50)
    buffer.extend(batch(every(3, 20)))
    sample = buffer.sample()
    mask = sample["collector", "mask"]
    assert sample.batch_size == mask.shape == sample["x"].shape == sample["index"].shape == (10, 5)
    assert (sample["x"] == sample["index"]).all()
    assert (sample["x"] // 3 == sample["x"][:, :1] // 3).all()


def test_padded_samples():
    buffer = buffer_of(every(3, 12) + every(1, 2), slice_len=5, strict_length=False, pad_output=True)
    sample = buffer.sample(500)
    mask = sample["collector", "mask"]
    assert sample.batch_size == mask.shape == (100, 5)
    assert set(mask.sum(1).tolist()) == {1, 3}
    rows = sample["x"]
    for real, row, init, cut, done in zip(
        mask.tolist(),
        rows.tolist(),
        sample["is_init"][..., 0].tolist(),
        sample["next", "truncated"][..., 0].tolist(),
        sample["next", "done"][..., 0].tolist(),
        strict=True,
    ):
        steps = sum(real)
        assert real == [True] * steps + [False] * (5 - steps)
        assert row == list(range(row[0], row[0] + steps)) + [row[0] + steps - 1] * (5 - steps)
        assert init == [True] + [False] * (steps - 1) + [True] * (5 - steps)
        assert cut == done == [False] * (steps - 1) + [True] * (6 - steps)


@pytest.mark.parametrize(
    "arguments", [{}, {"strict_length": False, "span": 1}, {"strict_length": False, "pad_output": True}]
)
def test_states_do_not_leak_into_copies_or_from_slice_to_slice(arguments):
    data = batch(every(3, 13)).set("h", torch.arange(13))
    data["next", "h"] = torch.arange(1, 14)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(13), sampler=SliceSampler(slice_len=3, **arguments))
    buffer.extend(data)
    sample = buffer.sample(90)
    for row in sample if sample.ndim == 2 else [sample]:
        goes_on = ~row["is_init"][1:, 0]
        assert not (row["next", "done"][:-1, 0] & goes_on).any()
        assert (row["h"][1:] == row["next", "h"][:-1])[goes_on].all()


def test_whole_slices_may_have_a_dimension_of_their_own():
    sample = buffer_of(every(5, 20), slice_len=4, pad_output=True).sample(8)
    assert sample["x"].shape == (2, 4)
    assert sample["collector", "mask"].all()


def test_environments_side_by_side_do_not_mix_and_go_on_in_the_next_batch():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(24, ndim=2), sampler=SliceSampler(slice_len=5))
    for start in (0, 6, 12, 18, 24, 30):  # three environments of two steps; the ring holds four batches
        buffer.extend(batch(torch.zeros(3, 2), start))
    sample = buffer.sample(5 * 500)["x"].view(-1, 5)
    assert buffer.sample(10).names == ["time"]
    assert buffer_of(every(5, 20), slice_len=4).sample(8).names == ["time"]
    begins = {tuple(row) for row in sample.tolist()}
    lanes = [[12 + 6 * k + 2 * lane + t for k in range(4) for t in range(2)] for lane in range(3)]
    assert begins == {tuple(lane[i : i + 5]) for lane in lanes for i in range(4)}


def test_flattened_environments_are_told_apart_by_names():
    names = torch.tensor([[0, 0, 0], [1, 1, 1]])
    data = batch(torch.zeros(2, 3), names=names).reshape(-1)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100), sampler=SliceSampler(slice_len=3))
    buffer.extend(data)
    assert {tuple(row) for row in buffer.sample(300)["x"].view(-1, 3).tolist()} == {(0, 1, 2), (3, 4, 5)}


@pytest.mark.parametrize("key", ["episode", ("my", "name")])
def test_names_alone_are_enough(key):
    data = TensorDict({"x": torch.arange(10), "next": {}}, batch_size=[10]).set(key, torch.arange(10.0) // 5)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(10), sampler=SliceSampler(slice_len=5, traj_key=None if key == "episode" else key)
    )
    buffer.extend(data)
    sample = buffer.sample(50)
    assert set(sample["x"].view(-1, 5)[:, 0].tolist()) == {0, 5}
    assert sample["next", "done"].view(-1, 5).tolist() == [[False] * 4 + [True]] * 10
    assert not sample["next", "terminated"].any()


def test_any_of_the_flags_ends_a_trajectory():
    data = TensorDict({"x": torch.arange(6)}, [6])
    data["next"] = TensorDict({"terminated": torch.zeros(6, 1), "truncated": torch.zeros(6, 1)}, [6]).bool()
    data["next", "terminated"][1], data["next", "truncated"][3] = True, True
    buffer = TensorDictReplayBuffer(storage=ListStorage(6), sampler=SliceSampler(slice_len=2))
    buffer.extend(data)
    assert {tuple(row) for row in buffer.sample(200)["x"].view(-1, 2).tolist()} == {(0, 1), (2, 3), (4, 5)}
    only = TensorDictReplayBuffer(
        storage=ListStorage(6), sampler=SliceSampler(slice_len=4, end_key=("next", "terminated"))
    )
    only.extend(data)
    assert set(only.sample(40)["x"].view(-1, 4)[:, 0].tolist()) == {2}


def test_several_slice_lengths_are_served():
    buffer = buffer_of(every(7, 70), num_slices=2)
    for steps in (1, 2, 7, 3, 5, 6, 4, 1, 7):
        assert buffer.sample(2 * steps)["x"].view(2, steps).diff(dim=1).eq(1).all()
        buffer.extend(batch(every(7, 7)))


def test_a_dataset_of_rows_side_by_side():
    data = batch(torch.zeros(4, 6))
    buffer = TensorDictReplayBuffer(storage=TensorStorage(data, ndim=2), sampler=SliceSampler(slice_len=6))
    assert set(buffer.sample(600)["x"].view(-1, 6)[:, 0].tolist()) == {0, 6, 12, 18}


def test_draws_are_repeatable_and_the_generators_alone():
    before = torch.get_rng_state()
    one, two = (buffer_of(every(5, 50), slice_len=3, strict_length=False) for _ in range(2))
    for _ in range(5):
        assert one.sample(30)["x"].equal(two.sample(30)["x"])
    assert torch.equal(before, torch.get_rng_state())
    free = ReplayBuffer(storage=TensorStorage(batch(every(5, 50))), sampler=SliceSampler(slice_len=3), batch_size=30)
    torch.manual_seed(3)
    first = free.sample()["x"]
    torch.manual_seed(3)
    assert first.equal(free.sample()["x"])
