"""Rows that expire."""

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import ArgumentError, CheckpointError, ContractError
from rl.replay import (
    ConsumingSampler,
    ImmutableDatasetWriter,
    LazyTensorStorage,
    ListStorage,
    RandomSampler,
    ReplayBuffer,
    Sequence,
    TensorDictReplayBuffer,
    TensorStorage,
)


def rows(start, stop):
    return TensorDict({"x": torch.arange(start, stop)}, [stop - start])


def make(n=1, size=20, batch_size=4, **options):
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(size),
        consume_after_n_samples=n,
        batch_size=batch_size,
        generator=torch.Generator().manual_seed(0),
        **options,
    )


@pytest.mark.parametrize("times", [1, 3])
def test_each_row_is_sampled_so_often_and_batches_have_different_rows(times):
    buffer = make(times, size=100, batch_size=7)
    buffer.extend(rows(0, 100))
    seen, batches = torch.zeros(100, dtype=torch.int64), list(buffer)
    for batch in batches:
        assert batch["x"].unique().numel() == len(batch)
        seen[batch["x"]] += 1
    assert (seen == times).all()
    assert (len(buffer), len(buffer.storage)) == (0, 100)
    with pytest.raises(ContractError, match=rf"all 100 rows were sampled {times} time\(s\)"):
        buffer.sample()
    buffer.extend(rows(100, 103))
    assert len(buffer) == 3
    assert sorted(buffer.sample()["x"].tolist()) == [100, 101, 102]


def test_small_batches_are_uniform():
    counts = torch.zeros(40)
    for seed in range(1000):
        sampler = ConsumingSampler()
        index, _ = sampler.sample(TensorStorage(torch.arange(40)), 4, generator=torch.Generator().manual_seed(seed))
        assert index.unique().numel() == 4
        counts[index] += 1
    assert ((counts - 100) ** 2 / 90).sum() < 72.1  # the 99.9 % quantile of chi-square with 39 degrees of freedom


@pytest.mark.parametrize("seed", range(10))
def test_consumed_rows_are_overwritten_first_and_the_oldest_ones_then(seed):
    random = torch.Generator().manual_seed(seed)
    buffer, left, written, samples = make(2, size=12, batch_size=3), {}, 0, {}
    for _ in range(60):
        if left and torch.rand((), generator=random) < 0.6:
            for x in buffer.sample()["x"].tolist():
                samples[x] += 1
                if samples[x] == 2:
                    del left[x]
        else:
            count = int(torch.randint(1, 8, (), generator=random))
            consumed = len(buffer.storage) - len(left)
            index = buffer.extend(rows(written, written + count))
            assert index.unique().numel() == count
            lost = [x for x, row in left.items() if row in index.tolist()]
            fresh = 12 - len(left) - consumed
            assert len(lost) == max(count - consumed - fresh, 0)  # never more than necessary
            for x in lost:
                del left[x]
            left |= dict(zip(range(written, written + count), index.tolist(), strict=True))
            samples |= dict.fromkeys(range(written, written + count), 0)
            written += count
        assert len(buffer) == len(left)
        assert {int(buffer[row]["x"]): row for row in left.values()} == left


def test_a_resumed_buffer_continues(tmp_path):
    one, two = make(2), make(2)
    one.extend(rows(0, 15))
    one.sample(), one.sample()
    one.dumps(tmp_path)
    two.loads(tmp_path)
    for start in range(15, 40, 5):
        for buffer in (one, two):
            buffer.extend(rows(start, start + 5))
        assert len(one) == len(two)
        assert (one.sample() == two.sample()).all()
    with pytest.raises(CheckpointError, match="has max_sample_count=3, the state max_sample_count=2"):
        make(3).loads(tmp_path)
    state = one.sampler.state_dict()
    state["left"] = state["left"][1:]
    with pytest.raises(CheckpointError, match="rows of left do not fit counts"):
        two.sampler.load_state_dict(state)
    one.empty()
    assert len(one) == 0
    one.extend(rows(0, 2))
    assert one.sample(5).batch_size == (2,)


def test_it_serves_other_storages_writers_and_units():
    buffer = ReplayBuffer(storage=ListStorage(9), sampler=ConsumingSampler(), batch_size=2)
    buffer.storage.set(torch.arange(3), rows(0, 3))  # past the buffer
    assert len(buffer) == 3
    assert len(buffer.sample()) == 2
    data = ReplayBuffer(
        storage=TensorStorage(torch.arange(5)),
        sampler=ConsumingSampler(),
        writer=ImmutableDatasetWriter(),
        batch_size=2,
        sample_unit=Sequence(2, done_key=None),
    )
    assert [len(batch) for batch in data] == [4, 4, 2]
    with pytest.raises(ContractError, match="fixed dataset"):
        data.extend(torch.arange(1))


def test_refusals():
    with pytest.raises(ArgumentError, match="max_sample_count must be at least 1, got 0"):
        make(0)
    with pytest.raises(ArgumentError, match=r"pass sampler or consume_after_n_samples=2"):
        ReplayBuffer(sampler=RandomSampler(), consume_after_n_samples=2)
    with pytest.raises(ArgumentError, match="leave out prefetch=2"):
        make(prefetch=2)
    with pytest.raises(ContractError, match="no priorities"):
        ConsumingSampler().update_priority(torch.zeros(1), torch.zeros(1))
    buffer = make()
    buffer.extend(rows(0, 5))
    buffer.storage.empty()
    with pytest.raises(ContractError, match="counts samples of 5 rows, and the storage has 0"):
        len(buffer)
