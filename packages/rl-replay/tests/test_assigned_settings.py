"""Settings that are assigned after a part was made: they are followed, or refused."""

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import ArgumentError
from rl.replay import (
    LazyTensorStorage,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    ReplayBufferEnsemble,
    RoundRobinWriter,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)


def filled(kind=TensorDictReplayBuffer, **options):
    buffer = kind(storage=LazyTensorStorage(10), batch_size=4, **options)
    buffer.extend(TensorDict(x=torch.arange(8), episode=torch.arange(8) // 4, batch_size=[8]))
    return buffer


@pytest.mark.parametrize(
    ("make", "name", "remedy"),
    [
        (filled, "storage", "Create a new buffer with storage="),
        (filled, "writer", "Create a new buffer with writer="),
        (filled, "sample_unit", "Create a new TensorDictReplayBuffer"),
        (filled, "collate_fn", "Create a new"),
        (filled, "pin_memory", "Create a new"),
        (filled, "prefetch", "Create a new"),
        (filled, "shared", "Create a new"),
        (lambda: SliceSampler(slice_len=4), "slice_len", "Create a new SliceSampler"),
        (lambda: SliceSampler(slice_len=4), "num_slices", "Create a new SliceSampler"),
        (lambda: SliceSampler(slice_len=4), "strict_length", "Create a new SliceSampler"),
        (lambda: PrioritizedSampler(4, 0.6, 0.4), "max_capacity", "Create a new PrioritizedSampler"),
        (lambda: PrioritizedSampler(4, 0.6, 0.4), "eps", "Create a new PrioritizedSampler"),
    ],
)
def test_an_assignment_that_would_change_nothing_is_refused(make, name, remedy):
    part = make()
    before = getattr(part, name)
    with pytest.raises(AttributeError, match=rf"{type(part).__name__}\.{name} is set by the constructor, .*{remedy}"):
        setattr(part, name, 8)
    assert getattr(part, name) is before


def assign(buffer, sampler):
    buffer.sampler = sampler


def set_sampler(buffer, sampler):
    before = buffer.sampler
    assert buffer.set_sampler(sampler) is before


@pytest.mark.parametrize("how", [assign, set_sampler])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_another_sampler_samples_the_stored_rows(how, prefetch):
    buffer = filled(prefetch=prefetch)
    buffer.sample()
    sampler = SamplerWithoutReplacement(shuffle=False)
    how(buffer, sampler)
    assert buffer.sampler is sampler
    assert [buffer.sample()["x"].tolist() for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    buffer.extend(TensorDict(x=torch.arange(8, 10), episode=torch.full((2,), 2), batch_size=[2]))
    assert [batch["x"].tolist() for batch in buffer] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_another_sampler_brings_slices_and_priorities():
    buffer = filled()
    buffer.sampler = SliceSampler(slice_len=4)
    sample = buffer.sample()
    assert sample["x"].tolist() in ([0, 1, 2, 3], [4, 5, 6, 7])
    assert sample["next", "truncated"].flatten().tolist() == [False, False, False, True]
    buffer.sampler = PrioritizedSampler(10, 1.0, 1.0, eps=0.0)
    buffer.update_priority(torch.arange(8), torch.eye(8)[5])
    sample = buffer.sample()
    assert sample["x"].tolist() == [5] * 4
    assert "priority_weight" in sample
    buffer.sampler = RandomSampler()
    assert "priority_weight" not in buffer.sample()


def test_the_state_is_that_of_the_new_sampler():
    buffer = filled()
    buffer.sampler = SamplerWithoutReplacement(shuffle=False)
    buffer.sample()
    other = filled(sampler=SamplerWithoutReplacement(shuffle=False))
    other.load_state_dict(buffer.state_dict())
    assert other.sample()["x"].tolist() == buffer.sample()["x"].tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize(
    ("make", "sampler", "message"),
    [
        (filled, 3, "sampler"),
        (filled, PrioritizedSampler(5, 1.0, 1.0), "max_size=10, its PrioritizedSampler only max_capacity=5"),
        (lambda: filled(shared=True), SamplerWithoutReplacement(), "shared=True takes a RandomSampler"),
        (lambda: filled(TensorDictPrioritizedReplayBuffer, alpha=1.0, beta=1.0), RandomSampler(), "by its priorities"),
        (lambda: ReplayBufferEnsemble(filled(), batch_size=4), RandomSampler(), "set in a member"),
    ],
)
def test_a_sampler_that_does_not_suit_is_refused(make, sampler, message):
    buffer = make()
    before = buffer.sampler
    with pytest.raises(ArgumentError, match=message):
        buffer.sampler = sampler
    assert buffer.sampler is before
    assert len(buffer.sample()) == 4


@pytest.mark.parametrize("prefetch", [0, 2])
def test_another_batch_size_counts_from_the_next_sample(prefetch):
    buffer = filled(prefetch=prefetch)
    buffer.sample()
    buffer.batch_size = 3
    assert [len(buffer.sample()) for _ in range(3)] == [3, 3, 3]
    assert buffer.batch_size == 3
    with pytest.raises(ArgumentError, match="batch_size must be at least 1"):
        buffer.batch_size = 0
    assert len(buffer.sample()) == 3


def test_prefetching_needs_a_batch_size():
    buffer = filled(prefetch=2)
    with pytest.raises(ArgumentError, match="prefetch=2 prepares batches ahead"):
        buffer.batch_size = None


def test_a_writer_is_not_replaced_by_an_equal_one():
    buffer = ReplayBuffer(storage=LazyTensorStorage(4))
    with pytest.raises(AttributeError, match=r"ReplayBuffer\.writer"):
        buffer.writer = RoundRobinWriter()
