"""What storages keep: layouts, nesting, non-tensor data, dimensions."""

import gc
import re
import shutil

import pytest
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict

from rl.core.errors import ArgumentError, BackendError, CheckpointError, ContractError, ShapeError, SpecError
from rl.replay import (
    ImmutableDatasetWriter,
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    TensorDictReplayBuffer,
    TensorStorage,
)

MAKERS = {"list": ListStorage, "tensor": LazyTensorStorage, "memmap": LazyMemmapStorage}
every_storage = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def transitions(n, start=0):
    number = torch.arange(start, start + n).unsqueeze(-1)
    return TensorDict(
        {"observation": number.float(), "next": {"observation": number.float() + 1, "done": number > 5}}, batch_size=[n]
    )


BROKEN = {
    "missing": (lambda td: td.exclude("observation"), ContractError, r"misses 'observation'.*expected the keys"),
    "missing nested": (lambda td: td.exclude(("next", "done")), ContractError, r"misses \('next', 'done'\)"),
    "extra": (lambda td: td.set("reward", torch.zeros(4)), ContractError, r"has 'reward', which the first batch"),
    "misspelt": (
        lambda td: td.rename_key_("observation", "observatoin"),
        ContractError,
        r"'observatoin' may stand for 'observation'",
    ),
    "dtype": (
        lambda td: td.set("observation", td["observation"].double()),
        SpecError,
        r"'observation' was float32 \[1\] per row in the first batch, got float64 \[1\]",
    ),
    "shape": (
        lambda td: td.set(("next", "observation"), torch.zeros(4, 2)),
        ShapeError,
        r"\('next', 'observation'\) was float32 \[1\] per row in the first batch, got float32 \[2\]",
    ),
    "kind": (lambda td: td["observation"], (SpecError, ContractError), "TensorDict|plain tensors"),
    "non-tensor": (
        lambda td: td.set("observation", NonTensorStack("a", "b", "c", "d")),
        SpecError,
        "'observation' was float32.*got non-tensor data",
    ),
    "no rows": (lambda td: td[:0], ShapeError, "without rows"),
}


@every_storage
@pytest.mark.parametrize(("breaks", "error", "text"), BROKEN.values(), ids=BROKEN)
def test_a_batch_that_differs_is_refused_before_anything_is_written(make, breaks, error, text):
    buffer = ReplayBuffer(storage=make(10))
    buffer.extend(transitions(3))
    before = buffer[:].clone()
    with pytest.raises(error, match=re.compile(text, re.DOTALL)):
        buffer.extend(breaks(transitions(4)))
    assert len(buffer) == 3
    assert buffer.write_count == 3
    assert (buffer[:] == before).all()
    assert buffer.extend(transitions(2)).tolist() == [3, 4]  # the cursor has not moved


@every_storage
def test_the_layout_stays_when_the_buffer_is_emptied(make):
    buffer = ReplayBuffer(storage=make(10))
    buffer.extend(transitions(3))
    buffer.empty()
    assert len(buffer) == 0
    with pytest.raises(ContractError, match="observation"):
        buffer.extend(transitions(3).exclude("observation"))


@every_storage
def test_a_batch_larger_than_the_storage_is_refused(make):
    buffer = ReplayBuffer(storage=make(4))
    with pytest.raises(ShapeError, match="5 rows for a storage of 4"):
        buffer.extend(transitions(5))
    assert len(buffer) == 0


@every_storage
def test_the_ring_overwrites_the_oldest(make):
    buffer = ReplayBuffer(storage=make(4))
    buffer.extend(transitions(3))
    assert buffer.extend(transitions(3, 10)).tolist() == [3, 0, 1]
    assert buffer[:]["observation"].squeeze(-1).tolist() == [11, 12, 2, 10]
    assert buffer.write_count == 6


@every_storage
def test_what_comes_out_is_a_copy(make):
    buffer = ReplayBuffer(storage=make(4))
    batch = transitions(4)
    buffer.extend(batch)
    batch["observation"].fill_(-1)
    for read in (lambda: buffer[:], lambda: buffer[0:2], lambda: buffer[1], lambda: buffer.sample(8)):
        read()["next", "observation"].fill_(-1)
    assert torch.equal(buffer[:]["next", "observation"], transitions(4)["next", "observation"])
    assert (buffer[:]["observation"] >= 0).all()


@every_storage
@pytest.mark.parametrize("nested", [False, True], ids=["root", "nested"])
def test_non_tensor_data_is_kept(make, nested):
    texts = TensorDict({"text": NonTensorStack("a", "b", "c")}, batch_size=[3])
    batch = TensorDict(
        {"x": torch.arange(3), "in": texts} if nested else {"x": torch.arange(3), **texts}, batch_size=[3]
    )
    key = ("in", "text") if nested else "text"
    buffer = ReplayBuffer(storage=make(4))
    buffer.extend(batch)
    index = buffer.extend(batch[1:])
    assert index.tolist() == [3, 0]
    assert buffer[:].get(key).tolist() == ["c", "b", "c", "b"]
    assert buffer[1][key] == "b"
    sample = buffer.sample(20)
    assert sample.get(key).tolist() == ["abc"[i] for i in sample["x"].tolist()]


@every_storage
def test_non_tensor_data_that_is_one_for_the_batch_is_kept_for_each_row(make):
    buffer = ReplayBuffer(storage=make(4))
    buffer.extend(TensorDict({"x": torch.arange(3), "task": "reach"}, batch_size=[3]))
    buffer.add(TensorDict({"x": torch.tensor(7), "task": NonTensorData("lift")}))
    assert buffer[:].get("task").tolist() == ["reach", "reach", "reach", "lift"]


def test_nested_batch_sizes_and_names_of_dimensions_are_kept():
    batch = TensorDict(
        {
            "agents": TensorDict({"obs": torch.rand(4, 5, 2, 3)}, batch_size=[4, 5, 2]),
            "e": TensorDict(batch_size=[4, 5]),
        },
        batch_size=[4, 5],
        names=[None, "time"],
    )
    buffer = ReplayBuffer(storage=LazyTensorStorage(10))
    assert buffer.extend(batch).tolist() == [0, 1, 2, 3]
    sample = buffer.sample(6)
    assert sample.batch_size == (6, 5)
    assert sample.names == [None, "time"]
    assert sample["agents"].batch_size == (6, 5, 2)
    assert sample["e"].batch_size == (6, 5)
    assert buffer[0].batch_size == (5,)
    assert torch.equal(buffer[:]["agents", "obs"], batch["agents", "obs"])


@pytest.mark.parametrize("make", [LazyTensorStorage, LazyMemmapStorage], ids=lambda c: c.__name__)
def test_a_storage_of_two_dimensions_counts_elements(make):
    batch = TensorDict({"x": torch.arange(12).view(3, 4), "s": NonTensorStack.from_list([list("abcd")] * 3)}, [3, 4])
    buffer = TensorDictReplayBuffer(storage=make(16, ndim=2))
    index = buffer.extend(batch)
    assert index.view(3, 4).T.flatten().tolist() == list(range(12))  # the environments lie side by side
    assert (buffer[index]["x"] == batch["x"].flatten()).all()
    assert len(buffer) == 12
    index = buffer.extend(batch[:2])
    assert index.tolist() == [12, 14, 0, 2, 13, 15, 1, 3]
    assert (buffer[index]["x"] == batch["x"][:2].flatten()).all()
    sample = buffer.sample(7)
    assert sample.batch_size == (7,)
    assert sample.get("s").tolist() == ["abcd"[i % 4] for i in sample["x"].tolist()]
    assert buffer.add(batch[0]).tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize(
    "data",
    [lambda x: x, lambda x: {"x": x}, lambda x: {"x": x, "y": x[..., 0]}, lambda x: TensorDict({"x": x}, x.shape[:2])],
)
def test_rows_of_two_dimensions_are_replaced_by_rows_as_they_are_read(data):
    buffer = ReplayBuffer(storage=LazyTensorStorage(12, ndim=2))
    buffer.extend(data(torch.arange(24).view(2, 4, 3)))
    before = buffer[:]
    for index in (5, -1, [6, 1, 3], slice(2, 7), torch.arange(8) % 3 == 0):
        buffer[index] = buffer[index]
    values = [rows if isinstance(rows, torch.Tensor) else rows["x"] for rows in (before, buffer[:])]
    assert torch.equal(*values)
    buffer[[6, 1]] = buffer[[1, 6]]
    swapped = buffer[:]
    swapped = swapped if isinstance(swapped, torch.Tensor) else swapped["x"]
    assert torch.equal(swapped, values[0][[0, 6, 2, 3, 4, 5, 1, 7]])


def test_indices_of_rows_with_steps_are_repeated_over_the_steps():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(8), batch_size=3)
    buffer.extend(TensorDict({"x": torch.arange(4).view(4, 1).expand(4, 5)}, [4, 5]))
    sample, info = buffer.sample(return_info=True)
    assert sample["index"].shape == (3, 5)
    assert torch.equal(sample["index"], sample["x"])
    assert info["index"].shape == (3,)


def test_plain_tensors_and_objects_can_be_stored():
    buffer = ReplayBuffer(storage=LazyTensorStorage(5))
    buffer.extend(torch.arange(4))
    assert buffer.add(torch.tensor(9)) == 4
    assert buffer[:].tolist() == [0, 1, 2, 3, 9]
    objects = ReplayBuffer()
    objects.extend(["a", "b"])
    objects.add("c")
    assert objects[:] == ["a", "b", "c"]
    assert set(objects.sample(60)) == {"a", "b", "c"}
    with pytest.raises(ContractError, match="use ListStorage for other objects"):
        ReplayBuffer(storage=LazyTensorStorage(5)).extend(["a"])


def test_mixed_kinds_need_a_ragged_list():
    buffer = ReplayBuffer()
    buffer.add("a")
    with pytest.raises(ContractError, match="ragged=True"):
        buffer.add(torch.zeros(2))
    ragged = ReplayBuffer(storage=ListStorage(ragged=True), collate_fn=lambda rows: [len(row) for row in rows])
    ragged.add(torch.zeros(2))
    ragged.add(torch.zeros(3))
    assert set(ragged.sample(60)) == {2, 3}


def test_rows_that_cannot_be_stacked_ask_for_a_collate_fn():
    buffer = ReplayBuffer(storage=ListStorage(ragged=True))
    buffer.add(torch.zeros(2))
    buffer.add(torch.zeros(3))
    with pytest.raises(ShapeError, match="collate_fn"):
        _ = buffer[:]


def test_gradients_are_not_stored():
    buffer = ReplayBuffer(storage=LazyTensorStorage(5))
    leaf = torch.ones(3, requires_grad=True)
    buffer.extend(TensorDict({"x": leaf * 2}, [3]))
    assert not buffer.sample(2)["x"].requires_grad


def test_a_dataset_is_used_as_it_is_and_refuses_writes():
    data = transitions(6)
    buffer = ReplayBuffer(storage=TensorStorage(data), writer=ImmutableDatasetWriter(), batch_size=3)
    assert len(buffer) == 6
    assert (buffer[:] == data).all()
    for write in (lambda: buffer.extend(transitions(1)), lambda: buffer.add(transitions(1)[0]), buffer.empty):
        with pytest.raises(ContractError, match="fixed dataset"):
            write()
    assert len(buffer) == 6


def test_reading_by_index_list_and_mask():
    buffer = ReplayBuffer(storage=LazyTensorStorage(10))
    buffer.extend(torch.arange(5))
    assert buffer[[3, 1]].tolist() == [3, 1]
    assert buffer[torch.tensor([[0, 1], [2, 3]])].tolist() == [[0, 1], [2, 3]]
    assert buffer[torch.tensor([True, False, False, True, False])].tolist() == [0, 3]
    assert buffer[1:5:2].tolist() == [1, 3]
    assert buffer[-1] == 4
    with pytest.raises(IndexError, match="mask"):
        _ = buffer[torch.tensor([True])]


@pytest.mark.cpu  # elsewhere indices are not read
@every_storage
@pytest.mark.parametrize("index", [5, -6, torch.tensor([0, 5]), torch.tensor([-1])], ids=str)
def test_an_index_outside_is_refused(make, index):
    buffer = ReplayBuffer(storage=make(10))
    buffer.extend(transitions(5))
    with pytest.raises(IndexError, match=r"outside \[0, 5\)"):
        _ = buffer[index]


@every_storage
def test_writing_may_not_leave_a_gap(make):
    storage = make(10)
    storage.set(torch.tensor([1, 0]), transitions(2))
    for index in ([3, 4], [2, 4], [4, 2]):
        with pytest.raises(IndexError, match="gap"):
            storage.set(torch.tensor(index), transitions(2))
    storage.set(torch.tensor([3, 0, 2]), transitions(3))
    assert len(storage) == 4


def test_an_existing_index_is_refused_by_buffers_that_write_it():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10))
    buffer.extend(transitions(5))
    with pytest.raises(ContractError, match="exclude"):
        buffer.extend(buffer.sample(3))


def test_a_buffer_of_tensordicts_refuses_other_rows():
    with pytest.raises(ContractError, match="got Tensor"):
        TensorDictReplayBuffer().extend(torch.zeros(3))
    with pytest.raises(ContractError, match="got str"):
        TensorDictReplayBuffer().add("row")


@every_storage
def test_an_empty_buffer_says_so(make):
    buffer = ReplayBuffer(storage=make(10), batch_size=3)
    with pytest.raises(ContractError, match="the buffer is empty"):
        buffer.sample()


def test_a_missing_batch_size_is_named():
    buffer = ReplayBuffer(storage=TensorStorage(torch.arange(3)))
    with pytest.raises(ArgumentError, match=r"sample\(n\)"):
        buffer.sample()
    with pytest.raises(ArgumentError, match="batch_size=n"):
        next(iter(buffer))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"prefetch": -1, "batch_size": 2}, "prefetch"),
        ({"prefetch": 2}, "batch_size"),
    ],
    ids=["batch size", "prefetch", "prefetch without batch size"],
)
def test_arguments_are_checked_at_construction(arguments, text):
    with pytest.raises(ArgumentError, match=text):
        ReplayBuffer(**arguments)


def test_memory_mapped_files_are_made_and_never_overwritten(tmp_path):
    storage = LazyMemmapStorage(100, scratch_dir=tmp_path / "rows")
    ReplayBuffer(storage=storage).extend(transitions(3))
    names = sorted(path.name for path in (tmp_path / "rows").iterdir())
    assert names == ["counters", "layout.json", "next.done.bin", "next.observation.bin", "observation.bin"]
    assert (tmp_path / "rows" / "observation.bin").stat().st_size == 400
    with pytest.raises(CheckpointError, match="not overwritten"):
        ReplayBuffer(storage=LazyMemmapStorage(100, scratch_dir=tmp_path / "rows")).extend(transitions(3))


@pytest.mark.parametrize("cleanup", [None, True, False], ids=str)
@pytest.mark.parametrize("temporary", [True, False], ids=["temporary", "named"])
def test_files_go_with_the_storage_if_asked(temporary, cleanup, tmp_path):
    storage = LazyMemmapStorage(100, scratch_dir=None if temporary else tmp_path, auto_cleanup=cleanup)
    storage.set(torch.arange(3), transitions(3))
    folder = storage.scratch_dir
    assert len(list(folder.iterdir())) == 5
    del storage
    gc.collect()
    removed = temporary if cleanup is None else cleanup
    assert folder.is_dir() == (not removed or not temporary)
    if folder.is_dir():
        assert len(list(folder.iterdir())) == (0 if removed else 5)
    if temporary and folder.is_dir():
        shutil.rmtree(folder)


def test_memory_mapped_files_are_refused_on_other_devices():
    with pytest.raises(BackendError, match=r"td\.to"):
        LazyMemmapStorage(100, device="cuda")


def test_a_write_that_fails_takes_no_place(tmp_path):
    (tmp_path / "observation.bin").write_bytes(b"of someone else")
    buffer = ReplayBuffer(storage=LazyMemmapStorage(100, scratch_dir=tmp_path))
    with pytest.raises(CheckpointError, match="not overwritten"):
        buffer.extend(transitions(3))
    assert (len(buffer), buffer.write_count, buffer.writer.cursor) == (0, 0, 0)
    assert (tmp_path / "observation.bin").read_bytes() == b"of someone else"


@pytest.mark.parametrize("make", [LazyTensorStorage, ListStorage], ids=lambda c: c.__name__)
def test_lazy_stacks_are_stored_like_dense_ones(make):
    rows = [transitions(1, i)[0] for i in range(4)]
    buffer = ReplayBuffer(storage=make(10))
    buffer.extend(LazyStackedTensorDict(*rows, stack_dim=0))
    buffer.extend(torch.stack(rows))
    assert (buffer[0:4] == buffer[4:8]).all()


def test_a_batch_on_the_meta_device_keeps_its_layout_only():
    storage = LazyTensorStorage(10, device="meta")
    storage.set(torch.arange(4), transitions(4).to("meta"))
    assert storage.get(torch.arange(2)).device == torch.device("meta")


@every_storage
def test_plain_tensors_are_copied_on_the_way_in_and_out(make):
    buffer, row = ReplayBuffer(storage=make(4)), torch.ones(3)
    buffer.add(row)
    row.zero_()
    for read in (lambda: buffer[0], lambda: buffer[:], lambda: buffer.sample(2)):
        assert (read() == 1).all()
        read().zero_()
    assert (buffer[0] == 1).all()


@pytest.mark.cpu  # it mixes the CPU and another device
def test_an_index_on_the_device_of_the_rows_is_not_read():
    storage = LazyTensorStorage(10, device="meta")
    storage.set(torch.arange(3), TensorDict(x=torch.zeros(3, 2), batch_size=[3]))
    drawn = torch.tensor([0, 9], device="meta")  # reading it is an error
    assert storage.get(drawn)["x"].shape == (2, 2)
    with pytest.raises(IndexError, match="index 9 is outside"):
        storage.get(torch.tensor([0, 9]))


@pytest.mark.parametrize("make", [LazyTensorStorage, LazyMemmapStorage])
def test_nested_tensors_are_refused_with_what_to_do(make):
    ragged = torch.nested.nested_tensor([torch.ones(1 + row % 3) for row in range(6)], layout=torch.jagged)
    storage = make(10)
    with pytest.raises(ShapeError, match=r"'x' is a nested tensor.*ragged=True"):
        storage.set(torch.arange(6), TensorDict(x=ragged, y=torch.zeros(6), batch_size=[6]))
    assert len(storage) == 0


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_later_nested_tensor_is_refused_before_anything_is_written():
    storage = LazyTensorStorage(4)
    storage.set(torch.arange(2), TensorDict(z=torch.zeros(2, 3), batch_size=[2]))
    ragged = torch.nested.nested_tensor([torch.ones(3), torch.ones(2)])
    with pytest.raises(ShapeError, match="got a nested tensor; nothing was written"):
        storage.set(torch.arange(2), TensorDict(z=ragged, batch_size=[2]))
    assert (storage.get(torch.arange(2))["z"] == 0).all()
