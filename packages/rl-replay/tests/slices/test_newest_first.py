"""`newest_first` of `SliceSampler`: the online queue of DreamerV3."""

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import ArgumentError, CheckpointError
from rl.replay import LazyTensorStorage, ReplayBuffer, RoundRobinWriter, SliceSampler

NEVER = ("next", "done")


def make(size=100, length=4, slices=2, *, ndim=1, **options):
    return ReplayBuffer(
        storage=LazyTensorStorage(size, ndim=ndim),
        sampler=SliceSampler(slice_len=length, pad_output=True, newest_first=True),
        batch_size=slices * length,
        generator=torch.Generator().manual_seed(0),
        **options,
    )


def rows(first, count, ends=()):
    done = torch.zeros(count, 1, dtype=torch.bool)
    done[list(ends)] = True
    return TensorDict(x=torch.arange(first, first + count), next={"done": done}, batch_size=[count])


def firsts(buffer):
    return buffer.sample()["x"][:, 0].tolist()


def test_each_new_slice_is_sampled_once_oldest_first_and_then_slices_are_random():
    buffer = make()
    buffer.extend(rows(0, 14))
    assert firsts(buffer) == [0, 4]
    assert firsts(buffer)[0] == 8
    buffer.extend(rows(14, 2))  # completes the slice that begins at 12
    assert firsts(buffer)[0] == 12
    later = torch.tensor([firsts(buffer) for _ in range(200)])
    assert set(later.flatten().tolist()) == set(range(13))


def test_all_slices_are_uniform_but_the_new_ones():
    buffer, plain = (
        make(),
        ReplayBuffer(
            storage=LazyTensorStorage(100),
            sampler=SliceSampler(slice_len=4, pad_output=True),
            batch_size=8,
            generator=torch.Generator().manual_seed(0),
        ),
    )
    for one in (buffer, plain):
        one.extend(rows(0, 20))
    found = [firsts(buffer) for _ in range(6)]
    expected = [firsts(plain) for _ in range(6)]
    assert found[:2] == [[0, 4], [8, 12]]
    assert found[2] == [16, expected[2][1]]
    assert found[3:] == expected[3:]


def test_slices_do_not_cross_the_end_of_a_trajectory():
    buffer = make()
    buffer.extend(rows(0, 15, ends=[5]))
    assert firsts(buffer) == [0, 6]
    assert firsts(buffer)[0] == 10


def test_environments_of_a_batch_have_slices_of_their_own():
    buffer = make(ndim=2, slices=3)
    data = torch.arange(12).view(3, 4)
    for part in data.split(2, 1):
        done = torch.zeros(3, 2, 1, dtype=torch.bool)
        buffer.extend(TensorDict(x=part, next=TensorDict(done=done, batch_size=[3, 2]), batch_size=[3, 2]))
    assert (buffer.sample()["x"] == data).all()


def test_a_slice_that_was_overwritten_before_it_was_sampled_is_left_out():
    buffer = make(size=8)
    buffer.extend(rows(0, 6))
    buffer.extend(rows(6, 6))  # overwrites 0 to 3
    assert firsts(buffer) == [4, 8]


def test_a_full_ring_goes_on():
    buffer = make(size=12, slices=1)
    found = []
    for first in range(0, 40, 4):
        buffer.extend(rows(first, 4))
        found += firsts(buffer)
    assert found == list(range(0, 40, 4))


def test_what_was_written_before_the_sampler_is_not_new():
    storage = LazyTensorStorage(100)
    ReplayBuffer(storage=storage).extend(rows(0, 10))
    sampler = SliceSampler(slice_len=4, pad_output=True, newest_first=True)
    buffer = ReplayBuffer(storage=storage, sampler=sampler, batch_size=4)
    buffer.extend(rows(10, 5))
    assert firsts(buffer) == [10]


def test_a_loaded_buffer_continues_exactly():
    one, two = make(), make()
    one.extend(rows(0, 22))
    one.sample()
    two.load_state_dict(one.state_dict())
    for buffer in (one, two):
        buffer.extend(rows(22, 3))
    assert [firsts(one) for _ in range(4)] == [firsts(two) for _ in range(4)]
    with pytest.raises(CheckpointError, match="length"):
        make(length=2).load_state_dict(one.state_dict())


def test_refreshed_states_keep_the_queue():
    buffer = make(writer=RoundRobinWriter(track_generations=True))
    data = rows(0, 12)
    data["belief"] = torch.zeros(12, 3, dtype=torch.bfloat16)
    buffer.extend(data)
    _, info = buffer.sample(return_info=True)
    result = buffer.update_if_present(
        index=info["index"],
        generation=info["index_generation"],
        patch={"belief": torch.ones(8, 3, dtype=torch.bfloat16)},
    )
    assert result.updated.all()
    assert buffer[:]["belief"][:, 0].tolist() == [1.0] * 8 + [0.0] * 4
    assert firsts(buffer)[0] == 8


def test_an_emptied_buffer_has_no_new_slices():
    buffer = make(slices=1)
    buffer.extend(rows(0, 8))
    buffer.empty()
    buffer.extend(rows(8, 4))
    assert firsts(buffer) == [8]


def test_it_needs_the_length_of_slices_and_does_not_prefetch():
    with pytest.raises(ArgumentError, match="slice_len"):
        SliceSampler(num_slices=2, newest_first=True)
    assert not SliceSampler(slice_len=2, newest_first=True).prefetchable
    assert SliceSampler(slice_len=2).prefetchable
