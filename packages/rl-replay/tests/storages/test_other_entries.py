"""Batches that lack entries of the first one, or have others."""

import pytest
import torch
from tensordict import NonTensorStack, TensorClass, TensorDict

from rl.core.errors import ContractError, RLError, ShapeError, SpecError
from rl.replay import LazyMemmapStorage, LazyTensorStorage, ReplayBuffer, SliceSampler

NUMBERS = (torch.float16, torch.bfloat16, torch.float64, torch.complex64)
OTHERS = (torch.bool, torch.uint8, torch.int64)


def whole(rows, *lead):
    shape = (rows, *lead)
    entries = {str(dtype): torch.ones(*shape, 3, dtype=dtype) for dtype in (*NUMBERS, *OTHERS)}
    return TensorDict({"x": torch.ones(shape), "next": {"x": torch.ones(shape), "y": {**entries}}}, batch_size=shape)


def filled(td, given):
    """`td` has ones in the entries `given`, and NaN or 0 in the others."""
    for key, cell in td.flatten_keys(".").items():
        number = cell.dtype.is_floating_point or cell.dtype.is_complex
        wrong = cell != 1 if key in given else ~cell.isnan() if number else cell != 0
        assert not wrong.any(), key


@pytest.mark.parametrize("make", [LazyTensorStorage, LazyMemmapStorage])
@pytest.mark.parametrize("ndim", [1, 2])
def test_missing_entries_are_filled_and_extra_ones_dropped(make, ndim):
    storage = make(24, ndim=ndim, allow_missing=True, allow_extra=True)
    storage.set(range(12), whole(4, 3) if ndim == 2 else whole(12))
    lead = (4, 3) if ndim == 2 else (12,)
    part = TensorDict({"x": torch.ones(lead), "z": {"x": torch.zeros(lead)}}, batch_size=lead)
    storage.set(range(12, 24), part)
    assert storage.get(0).flatten_keys(".").keys() == storage.get(12).flatten_keys(".").keys()
    filled(storage.get(slice(0, 12)), set(storage.get(0).flatten_keys(".").keys()))
    filled(storage.get(slice(12, 24)), {"x"})
    storage.set(3, whole(1)[0].exclude(("next", "y")) if ndim == 1 else whole(1, 1)[0].exclude(("next", "y")))
    filled(storage.get(3), {"x", "next.x"})
    assert set(part.keys()) == {"x", "z"}  # the batch itself stays as it is


def test_each_option_allows_what_it_names_only():
    data = TensorDict(x=torch.zeros(2), y=torch.zeros(2), batch_size=[2])
    lacks, more = data.exclude("y"), data.clone().set("z", torch.zeros(2))
    for options, refused, taken in (
        ({}, (lacks, more), ()),
        ({"allow_missing": True}, (more,), (lacks,)),
        ({"allow_extra": True}, (lacks,), (more,)),
    ):
        storage = LazyTensorStorage(10, **options)
        storage.set(range(2), data)
        for batch in refused:
            with pytest.raises(ContractError, match="allow_"):
                storage.set(range(2, 4), batch)
        assert len(storage) == 2
        for batch in taken:
            storage.set(range(2, 4), batch)
            assert len(storage) == 4


class Pair(TensorClass):
    a: torch.Tensor
    b: torch.Tensor


def test_rows_that_are_no_tensordicts_and_non_tensor_data():
    storage = LazyTensorStorage(10, allow_missing=True, allow_extra=True)
    pair = Pair(torch.ones(2), torch.ones(2), batch_size=[2])
    storage.set(range(2), {"x": torch.ones(2), "pair": pair})
    storage.set(range(2, 4), {"x": torch.ones(2), "other": pair})
    assert storage.get(3).keys() == {"x", "pair"}
    assert storage.get(3)["pair"].a.isnan()
    with pytest.raises(ContractError):
        storage.set(range(2), {"x": torch.ones(2), "pair": (torch.ones(2), torch.ones(2))})
    with pytest.raises(ContractError, match="was a dict, got a TensorDict"):
        storage.set(range(2), TensorDict(x=torch.ones(2), batch_size=[2]))
    texts = LazyTensorStorage(10, allow_missing=True)
    texts.set(range(2), TensorDict({"x": torch.ones(2), "text": NonTensorStack("a", "b")}, batch_size=[2]))
    texts.set(range(1, 3), TensorDict(x=torch.ones(2), batch_size=[2]))
    assert texts.get(slice(None))["text"] == ["a", None, None]


def test_what_does_not_fit_is_still_refused():
    x = torch.zeros(2)
    storage = LazyTensorStorage(10, allow_missing=True, allow_extra=True)
    storage.set(range(2), TensorDict({"x": x, "y": {"z": x}}, batch_size=[2]))
    for batch, error in (
        (TensorDict({"x": x, "y": x}, batch_size=[2]), ContractError),
        (TensorDict({"x": {"z": x}, "y": {"z": x}}, batch_size=[2]), ContractError),
        (TensorDict({"other": x}, batch_size=[2]), ContractError),
        (TensorDict(batch_size=[2]), ContractError),
        (TensorDict({"x": x.double()}, batch_size=[2]), SpecError),
        (TensorDict({"x": x.unsqueeze(1)}, batch_size=[2]), ShapeError),
        (TensorDict({"x": x[:1]}, batch_size=[1]), ShapeError),
        (x, SpecError),
    ):
        with pytest.raises(error):
            storage.set(range(2, 4), batch)
    assert len(storage) == 2


def test_entries_that_a_sampler_reads_are_not_filled():
    storage = LazyTensorStorage(10, allow_missing=True)
    buffer = ReplayBuffer(storage=storage, sampler=SliceSampler(slice_len=2), batch_size=4)
    done = torch.tensor([[False], [False], [True]])
    buffer.extend(TensorDict({"x": torch.zeros(3), ("next", "done"): done}, batch_size=[3]))
    with pytest.raises(RLError, match="done"):
        buffer.extend(TensorDict(x=torch.zeros(3), batch_size=[3]))
    assert len(buffer) == 3
    buffer.extend(TensorDict({("next", "done"): done}, batch_size=[3]))
    assert buffer[3:]["x"].isnan().all()


def test_compact_and_shared_rows():
    frames = torch.arange(4.0)
    data = TensorDict({"x": frames, "next": {"x": frames + 1}}, batch_size=[4])
    compact = LazyTensorStorage(8, compact=True, allow_missing=True)
    compact.set(range(4), data)
    compact.set(range(4, 8), data.exclude("next"))
    assert compact.get(slice(4))["next", "x"].tolist() == [1, 2, 3, 4]
    assert compact.get(slice(4, 8))["next", "x"].isnan().all()
    shared = ReplayBuffer(storage=LazyTensorStorage(8, allow_extra=True), shared=True)
    shared.extend(data.exclude("next"))
    shared.extend(data)
    assert shared[:]["x"].tolist() == [0, 1, 2, 3] * 2
