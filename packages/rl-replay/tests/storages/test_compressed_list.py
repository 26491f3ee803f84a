"""Compressed rows come back bit by bit."""

import bz2
import lzma
import pickle
import zlib

import pytest
import torch
from tensordict import NonTensorStack, TensorClass, TensorDict

from rl.core.errors import ArgumentError, CheckpointError, ContractError, ShapeError, SpecError
from rl.replay import (
    CompressedListStorage,
    ConsumingSampler,
    ListStorage,
    PrioritizedSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
)
from rl.testing import check_storage

DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.int64, torch.float16),
    *(torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.float8_e4m3fn),
)


def any_bits(rows, seed=0):
    """Rows of each dtype with any bits, also those of NaNs, in shapes from [] to [3, 2]."""
    generator = torch.Generator().manual_seed(seed)
    entries = {"none": torch.zeros(rows, 0)}
    for number, dtype in enumerate(DTYPES):
        shape = [(), (3,), (3, 2)][number % 3]
        size = torch.Size(shape).numel() * dtype.itemsize
        bits = torch.randint(2 if dtype is torch.bool else 256, (rows, size), generator=generator, dtype=torch.uint8)
        entries[str(dtype)] = bits.view(dtype).reshape(rows, *shape)
    return TensorDict({**entries, "next": {"text": entries["torch.uint8"].clone()}}, batch_size=[rows])


def same_bits(one, two):
    ones, twos = (dict(sorted(td.flatten_keys().items())) for td in (one, two))
    assert one.batch_size == two.batch_size
    assert list(ones.keys()) == list(twos.keys())
    for (key, left), right in zip(ones.items(), twos.values(), strict=True):
        assert (left.dtype, left.shape) == (right.dtype, right.shape), key
        flat = [cell.contiguous().reshape(-1).view(torch.uint8) for cell in (left, right) if cell.numel()]
        assert not flat or torch.equal(*flat), key


FUNCTIONS = {
    "zlib": {},
    "none": {"compression_level": 0},
    "bz2": {"compression_fn": bz2.compress, "decompression_fn": bz2.decompress},
    "bytearray": {"compression_fn": bytearray, "decompression_fn": memoryview},
}


@pytest.mark.parametrize("options", FUNCTIONS.values(), ids=FUNCTIONS)
def test_rows_come_back_bit_by_bit_also_after_a_ring_wrapped(options):
    check_storage(lambda size: CompressedListStorage(size, **options))
    data = any_bits(17)
    buffer = ReplayBuffer(storage=CompressedListStorage(10, **options))
    for part in data.split(4):
        buffer.extend(part)
    order = torch.tensor([10, 11, 12, 13, 14, 15, 16, 7, 8, 9])
    same_bits(buffer[:], data[order])
    same_bits(buffer[torch.tensor([[3, 0], [9, 3]])], data[order][torch.tensor([[3, 0], [9, 3]])])
    same_bits(buffer[-1], data[9])
    same_bits(pickle.loads(pickle.dumps(buffer.storage)).get(slice(2, 5)), data[12:15])
    found = buffer.storage.columns([("next", "text"), "no"], torch.tensor([0, 9]))
    assert list(found) == [("next", "text")]
    assert torch.equal(found["next", "text"], data["next", "text"][[10, 9]])


def test_conjugate_views_strides_rows_in_lists_and_plain_tensors_are_stored_as_their_values():
    x = torch.randn(4, 3, dtype=torch.complex64)
    storage = CompressedListStorage(10)
    storage.set(range(3), x.mH)
    assert torch.equal(storage.get(slice(None)), x.mH.resolve_conj())
    storage.set(torch.tensor([3, 0, 3]), [x[:, 0], x[:, 1], x[:, 2]])
    assert torch.equal(storage.get(slice(None)), torch.stack([x[:, 1], x.mH[1], x.mH[2], x[:, 2]]))
    storage.set(1, x[:, 0])
    assert torch.equal(storage.get(1), x[:, 0])
    assert len(storage) == 4


def test_images_take_less_memory():
    frames = torch.zeros(8, 84, 84, 4, dtype=torch.uint8)
    frames[:, 20:30, 20:30] = torch.arange(1, 9, dtype=torch.uint8).reshape(8, 1, 1, 1)
    storages = [CompressedListStorage(8, compression_level=level) for level in (0, 9)]
    for storage in storages:
        storage.set(range(8), frames)
        assert torch.equal(storage.get(range(8)), frames)
    assert storages[0].nbytes >= frames.numel() > 50 * storages[1].nbytes


class Point(TensorClass):
    x: torch.Tensor


def steps(start, stop):
    x = torch.arange(start, stop)
    return TensorDict({"x": x.float(), ("next", "done"): (x % 5 == 4).unsqueeze(-1)}, batch_size=[len(x)])


SAMPLERS = {
    "random": lambda: None,
    "passes": SamplerWithoutReplacement,
    "priorities": lambda: PrioritizedSampler(20, 0.6, 0.4, backend="torch"),
    "slices": lambda: SliceSampler(slice_len=3),
    "slice passes": lambda: SliceSamplerWithoutReplacement(slice_len=2),
    "consuming": ConsumingSampler,
}


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_samples_are_those_of_a_list_and_states_continue_them(sampler, tmp_path):
    def make(kind):
        generator = torch.Generator().manual_seed(0)
        return TensorDictReplayBuffer(storage=kind(20), sampler=sampler(), batch_size=6, generator=generator)

    one, two, three, four = (make(CompressedListStorage) for _ in range(4))
    plain = make(ListStorage)
    for start in range(0, 28, 7):
        for buffer in (one, plain):
            buffer.extend(steps(start, start + 7))
        assert torch.equal(one.sample()["x"], plain.sample()["x"])
    two.load_state_dict(one.state_dict())
    one.dumps(tmp_path)
    three.loads(tmp_path)
    expected = plain.sample()
    for buffer in (one, two, three):
        sample = buffer.sample()
        assert torch.equal(sample["x"], expected["x"])
        assert torch.equal(sample["index"], expected["index"])
    one.empty()
    four.load_state_dict(one.state_dict())
    assert len(four) == 0


def test_bad_rows_raise_before_anything_is_written():
    storage = CompressedListStorage(10)
    with pytest.raises(ContractError, match="is empty"):
        storage.get(0)
    text = TensorDict({"text": NonTensorStack("a", "b")}, batch_size=[2])
    for data, error, message in (
        (text, SpecError, "'text' is no dense tensor"),
        (["a", "b"], ContractError, "got str; use ListStorage"),
        ([], ShapeError, "without rows"),
        (torch.tensor(1), ShapeError, "leading dimension"),
        (TensorDict(batch_size=[2]), ContractError, "has no entries"),
        (TensorDict({"x": Point(torch.zeros(2), batch_size=[2])}, batch_size=[2]), ContractError, "a Point at 'x'"),
        (torch.eye(2).to_sparse(), SpecError, "the tensor is no dense tensor"),
        (torch.empty(2, device="meta"), SpecError, "the tensor is no dense tensor"),
        ({"x": torch.zeros(2)}, ContractError, "CompressedListStorage takes a batch"),
    ):
        with pytest.raises(error, match=message):
            storage.set(range(2), data)
    assert len(storage) == 0
    storage.set(range(2), steps(0, 2))
    for data, error, message in (
        (steps(0, 2).exclude("x"), ContractError, "misses 'x'"),
        (steps(0, 2).double(), SpecError, "'x' was float32"),
        (steps(0, 2).apply(lambda cell: cell.unsqueeze(-1)), ShapeError, "'x' was float32"),
        (steps(0, 3), ShapeError, "2 indices for 3 rows"),
        ([steps(0, 2)[0], steps(0, 2)[1].exclude("x")], ContractError, "misses 'x'"),
    ):
        with pytest.raises(error, match=message):
            storage.set(range(2), data)
    for index in ([9, 8], [-1, 0], [10, 2]):
        with pytest.raises(IndexError):
            storage.set(index, steps(0, 2))
    for index in (2, -3, torch.tensor([0, 2]), torch.tensor([-1])):
        with pytest.raises(IndexError):
            storage.get(index)
    same_bits(storage.get(slice(None)), steps(0, 2))


def test_bad_functions_and_levels_are_refused():
    for options, message in (
        ({"compression_fn": zlib.compress}, "pass both"),
        ({"compression_fn": zlib.compress, "decompression_fn": 3}, "must be a function"),
        ({"compression_level": 10}, "at most 9, got 10"),
        ({"compression_level": 2.0}, "must be an integer, got 2.0"),
    ):
        with pytest.raises(ArgumentError, match=message):
            CompressedListStorage(10, **options)
    for compress, decompress, message in (
        (lambda row: torch.zeros(3), bytes, "must return bytes, got Tensor"),
        (lambda row: row[:-1], bytes, "inverse"),
        (lambda row: row[::-1], bytes, "inverse"),
        (bytes, lambda blob: None, "inverse"),
    ):
        storage = CompressedListStorage(10, compression_fn=compress, decompression_fn=decompress)
        with pytest.raises(ContractError, match=message):
            storage.set(range(2), steps(1, 3))
        assert len(storage) == 0
        assert "nothing yet" in repr(storage)


def test_states_of_other_functions_and_damaged_ones_are_refused():
    storage, other = CompressedListStorage(10), CompressedListStorage(10)
    storage.set(range(3), steps(0, 3))
    other.set(range(2), steps(5, 7))
    state = storage.state_dict()
    flipped = state["rows"].clone()
    flipped[-1] ^= 1
    functions = {"compression_fn": lzma.compress, "decompression_fn": lzma.decompress}
    for target, damaged in (
        (CompressedListStorage(10, **functions), state),
        (CompressedListStorage(9), state),
        (other, {**state, "rows": flipped}),
        (other, {**state, "rows": state["rows"][1:]}),
        (other, {**state, "sizes": state["sizes"] * 0}),
        (other, {**state, "sizes": -state["sizes"]}),
        (other, {**state, "layout": None}),
        (other, {name: value for name, value in state.items() if name != "sizes"}),
    ):
        before = len(target)
        with pytest.raises(CheckpointError):
            target.load_state_dict(damaged)
        assert len(target) == before
    same_bits(other.get(slice(None)), steps(5, 7))
