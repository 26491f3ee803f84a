"""States continue exactly, and damaged ones change nothing."""

import subprocess
import sys

import pytest
import torch
from tensordict import NonTensorStack, TensorDict

from rl.core.errors import CheckpointError
from rl.replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    RandomSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    TensorDictReplayBuffer,
)

STORAGES = {"list": ListStorage, "tensor": LazyTensorStorage, "memmap": LazyMemmapStorage}
SAMPLERS = {"random": RandomSampler, "passes": SamplerWithoutReplacement}


def batch(n, start=0):
    number = torch.arange(start, start + n)
    return TensorDict(
        {
            "x": number.float(),
            "half": number.to(torch.bfloat16),
            "next": {"x": number + 1, "text": NonTensorStack(*[f"row {i}" for i in number.tolist()])},
        },
        batch_size=[n],
    )


def make(storage, sampler, prefetch=0, seed=0):
    return TensorDictReplayBuffer(
        storage=STORAGES[storage](20),
        sampler=SAMPLERS[sampler](),
        batch_size=4,
        prefetch=prefetch,
        generator=torch.Generator().manual_seed(seed),
        transform=lambda td: td.set("seen", td["x"] * 2),
    )


def same(one, two):
    assert set(one.keys(include_nested=True)) == set(two.keys(include_nested=True))
    for key in one.keys(include_nested=True, leaves_only=True):
        assert one[key].dtype == two[key].dtype
        assert torch.equal(one[key], two[key])
    assert one.get(("next", "text")).tolist() == two.get(("next", "text")).tolist()


@pytest.mark.parametrize("disk", [False, True], ids=["state", "folder"])
@pytest.mark.parametrize("prefetch", [0, 3])
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("storage", STORAGES)
def test_a_resumed_buffer_goes_on_as_the_first_would_have(storage, sampler, prefetch, disk, tmp_path):
    first = make(storage, sampler, prefetch)
    first.extend(batch(15))
    first.sample()
    first.extend(batch(10, 50))  # batches on their way were drawn before
    first.sample()
    second = make(storage, sampler, prefetch, seed=1)
    second.extend(batch(3))
    second.sample()
    if disk:
        first.dumps(tmp_path)
        second.loads(tmp_path)
    else:
        second.load_state_dict(first.state_dict())
    assert (len(second), second.write_count) == (20, 25)
    for step in range(12):
        same(first.sample(), second.sample())
        if step % 4 == 3:
            assert torch.equal(first.extend(batch(3, step)), second.extend(batch(3, step)))
    same(first[:], second[:])


def test_a_state_does_not_change_with_the_buffer():
    buffer = make("tensor", "passes")
    buffer.extend(batch(10))
    state = buffer.state_dict()
    buffer.extend(batch(20, 100))
    other = make("tensor", "passes")
    other.load_state_dict(state)
    same(other[:], batch(10))
    other.extend(batch(20, 200))
    again = make("tensor", "passes")
    again.load_state_dict(state)
    same(again[:], batch(10))


def test_states_load_with_weights_only(tmp_path):
    buffer = make("list", "passes", prefetch=2)
    buffer.extend(batch(10))
    buffer.sample()
    torch.save(buffer.state_dict(), tmp_path / "state.pt")
    other = make("list", "passes", prefetch=2, seed=1)
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    same(buffer.sample(), other.sample())


def test_an_empty_buffer_can_be_saved(tmp_path):
    make("tensor", "random").dumps(tmp_path)
    other = make("tensor", "random")
    other.extend(batch(3))
    other.loads(tmp_path)
    assert len(other) == 0


def test_a_second_dump_replaces_the_first(tmp_path):
    buffer = make("tensor", "random")
    for start in (0, 10):
        buffer.extend(batch(10, start))
        buffer.dumps(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    other = make("tensor", "random")
    other.loads(tmp_path)
    same(other[:], batch(20))


def test_a_damaged_checkpoint_is_refused_and_the_buffer_stays(tmp_path):
    buffer = make("tensor", "random")
    buffer.extend(batch(10))
    buffer.dumps(tmp_path)
    path = tmp_path / "state.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 1
    path.write_bytes(raw)
    with pytest.raises(CheckpointError, match="checksum"):
        buffer.loads(tmp_path)
    same(buffer[:], batch(10))


MISFITS = {
    "storage": (lambda: ReplayBuffer(storage=ListStorage(20)), "storage"),
    "capacity": (lambda: ReplayBuffer(storage=LazyTensorStorage(21)), "max_size=21"),
    "dimensions": (lambda: ReplayBuffer(storage=LazyTensorStorage(20, ndim=2)), "ndim=2"),
    "sampler": (
        lambda: ReplayBuffer(storage=LazyTensorStorage(20), sampler=SamplerWithoutReplacement()),
        "SamplerWithoutReplacement",
    ),
    "generator": (
        lambda: ReplayBuffer(storage=LazyTensorStorage(20), generator=torch.Generator()),
        "the buffer has a generator, the state has none",
    ),
}


@pytest.mark.parametrize(("other", "text"), MISFITS.values(), ids=MISFITS)
def test_a_state_of_other_parts_is_refused_and_nothing_changes(other, text):
    state = ReplayBuffer(storage=LazyTensorStorage(20))
    state.extend(torch.arange(3))
    buffer = other()
    with pytest.raises(CheckpointError, match=text):
        buffer.load_state_dict(state.state_dict())
    assert len(buffer) == 0
    assert buffer.writer.cursor == 0


def test_what_is_no_state_is_refused():
    with pytest.raises(CheckpointError, match="lacks types"):
        ReplayBuffer().load_state_dict({})


@pytest.mark.parametrize("storage", STORAGES)
def test_objects_that_need_pickle_are_refused_with_their_key(storage):
    buffer = ReplayBuffer(storage=STORAGES[storage](5))
    buffer.extend(TensorDict({"x": torch.zeros(2), "o": NonTensorStack(object(), object())}, [2]))
    with pytest.raises(CheckpointError, match="holds a object"):
        buffer.state_dict()


WRITER = """
import sys
import torch
from tensordict import TensorDict
from rl.replay import LazyTensorStorage, TensorDictReplayBuffer
folder, value = sys.argv[1:]
buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(2000), batch_size=8)
buffer.extend(TensorDict(x=torch.full((2000, 20), float(value)), batch_size=[2000]))
for _ in range(40):
    buffer.dumps(folder)
"""


def test_two_processes_write_one_checkpoint_while_a_third_reads(tmp_path):
    folder, loads = tmp_path / "checkpoint", 0
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(folder), value]) for value in "12"]
    while any(writer.poll() is None for writer in writers):
        if not (folder / "state.safetensors").is_file():
            continue
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(2000), batch_size=8)
        buffer.loads(folder)
        rows = buffer[:]["x"]
        assert (rows == rows[0, 0]).all()
        loads += 1
    assert [writer.returncode for writer in writers] == [0, 0]
    assert loads
    assert [path.name for path in folder.iterdir()] == ["state.safetensors"]
