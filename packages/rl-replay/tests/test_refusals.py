"""Arguments without a meaning, and indices of other kinds."""

import copy
import pickle

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import ArgumentError, SpecError
from rl.replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    RandomSampler,
    ReplayBuffer,
    TensorDictReplayBuffer,
    TensorStorage,
)


@pytest.mark.parametrize("size", [0, 1e6, 10.5, True, "10"])
@pytest.mark.parametrize("kind", [LazyTensorStorage, LazyMemmapStorage, ListStorage])
def test_a_capacity_is_an_integer(kind, size):
    with pytest.raises(ArgumentError, match=rf"{kind.__name__}: max_size must be (an integer|at least 1), got"):
        kind(size)


@pytest.mark.parametrize("size", [0, 2.0, "3"])
def test_a_batch_size_is_an_integer(size):
    with pytest.raises(ArgumentError, match=r"ReplayBuffer: batch_size must be (an integer|at least 1), got"):
        ReplayBuffer(batch_size=size)


@pytest.mark.parametrize("size", [0, -1, 2.5, True, "3"])
def test_so_is_that_of_one_sample(size):
    buffer = ReplayBuffer(storage=LazyTensorStorage(10))
    buffer.extend(torch.arange(5))
    with pytest.raises(ArgumentError, match=r"ReplayBuffer: batch_size must be (an integer|at least 1), got"):
        buffer.sample(size)


def test_integers_of_numpy_are_accepted():
    buffer = ReplayBuffer(storage=LazyTensorStorage(np.int64(10)), batch_size=np.int32(4))
    buffer.extend(torch.arange(5))
    assert buffer.sample().shape == (4,)


@pytest.mark.parametrize("storage", [LazyTensorStorage(10), ListStorage(10)], ids=["tensor", "list"])
def test_rows_are_found_by_arrays_as_by_tensors(storage):
    buffer = ReplayBuffer(storage=storage)
    buffer.extend(TensorDict(x=torch.arange(5), batch_size=[5]))
    assert buffer[np.array([3, 1])]["x"].tolist() == [3, 1]
    assert buffer[np.array([True, False, False, True, False])]["x"].tolist() == [0, 3]
    assert buffer[np.int64(2)]["x"].item() == 2
    assert len(buffer[[]]) == 0
    assert buffer[[True, False, False, True, False]]["x"].tolist() == [0, 3]
    assert buffer[-1]["x"].item() == 4
    for index in (-6, [-1], [5]):
        with pytest.raises(IndexError, match="outside"):
            buffer[index]
    for index in ("x", 1.5, [1.5], torch.tensor([1.0]), None):
        with pytest.raises(IndexError, match="ReplayBuffer is indexed by"):
            buffer[index]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"storage": LazyTensorStorage}, r"storage has a method 'get', got .*LazyTensorStorage.*: storage=LazyTensorS"),
        ({"sampler": "random"}, r"sampler has a method 'sample', got 'random': sampler=RandomSampler\(\)"),
        (
            {"writer": RandomSampler()},
            r"writer has a method 'claim', got RandomSampler\(\): writer=RoundRobinWriter\(\)",
        ),
        ({"transform": 3}, "transform is a function from TensorDict to TensorDict, got 3"),
        ({"prefetch": 1.5}, "prefetch must be an integer, got 1.5"),
        ({"prefetch": -1}, "prefetch must be at least 0, got -1"),
    ],
    ids=["class", "name", "writer", "transform", "half", "negative"],
)
def test_parts_of_another_kind_are_refused_before_anything_is_written(arguments, text):
    with pytest.raises(ArgumentError, match=f"ReplayBuffer: {text}"):
        ReplayBuffer(batch_size=2, **arguments)


UNWRITABLE = ["uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2"]


@pytest.mark.parametrize("name", UNWRITABLE)
@pytest.mark.parametrize("make", [LazyTensorStorage, LazyMemmapStorage])
def test_a_dtype_that_torch_cannot_write_is_refused_before_anything_is(make, name):
    dtype = getattr(torch, name)
    try:
        torch.empty(1, dtype=dtype).index_copy_(0, torch.tensor([0]), torch.empty(1, dtype=dtype))
    except NotImplementedError:
        pass
    else:
        pytest.skip(f"this torch writes {name}")
    x = TensorDict(pixel=torch.zeros(3, 2).to(dtype), batch_size=[3])
    buffer = TensorDictReplayBuffer(storage=make(6), batch_size=2)
    with pytest.raises(SpecError, match=rf"'next', 'pixel'.*{name}.*nothing was written.*ListStorage") as said:
        buffer.extend(TensorDict(a=torch.zeros(3), next=x, batch_size=[3]))
    assert "torch.int" in str(said.value) or "torch.float16" in str(said.value)
    assert (len(buffer), buffer.write_count, buffer.storage.layout) == (0, 0, None)
    buffer.extend(TensorDict(a=torch.zeros(3), next=x.to(torch.float32), batch_size=[3]))
    assert buffer.sample()["next", "pixel"].shape == (2, 2)


def test_a_dataset_of_such_a_dtype_is_read_and_not_written():
    data = TensorDict(a=torch.zeros(3), pixel=torch.arange(3).to(torch.uint16), batch_size=[3])
    storage = TensorStorage(data.clone())
    assert storage.get(torch.tensor([2, 0]))["pixel"].tolist() == [2, 0]
    with pytest.raises(SpecError, match=r"'pixel'.*uint16"):
        storage.set(torch.tensor([1]), TensorDict(a=torch.ones(1), pixel=data["pixel"][:1], batch_size=[1]))
    assert storage.get(torch.arange(3))["a"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_buffer_says_how_it_is_copied(way):
    buffer = ReplayBuffer(storage=LazyTensorStorage(10), batch_size=2, prefetch=1)
    buffer.extend(torch.arange(5))
    buffer.sample()
    with pytest.raises(TypeError, match=r"ReplayBuffer.*state_dict\(\).*dumps"):
        way(buffer)


@pytest.mark.parametrize("device", ["gpu", ["cpu"], ["cuda:0", "cuda:1"], 1.5])
@pytest.mark.parametrize("kind", [LazyTensorStorage, LazyMemmapStorage])
def test_what_is_no_device_is_named(kind, device):
    with pytest.raises(ArgumentError, match=rf"{kind.__name__}: device is one device of torch, such as 'cpu'.*got"):
        kind(10, device=device)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_storage_has_the_device_of_its_first_batch_on_request(device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    storage = LazyTensorStorage(10, device="auto")
    storage.set(range(3), TensorDict(x=torch.arange(3, device=device), batch_size=[3]))
    assert storage.get(1)["x"].item() == 1
    assert storage.get(1)["x"].device.type == storage.device.type == device


class Row:
    batch_size = 3

    def keys(self):
        return ["a"]


@pytest.mark.parametrize("rows", [[{0: 1}, {0: 2}], [{(): 1}, {(0, 1): 2}], [Row(), Row()], [("a", 1), ("b", 2)]])
def test_rows_of_any_kind_pass_through_a_collate_fn_of_ones_own(rows):
    buffer = ReplayBuffer(storage=ListStorage(4), collate_fn=lambda rows: rows, batch_size=2)
    buffer.extend(rows)
    assert all(row in rows for row in buffer.sample())
