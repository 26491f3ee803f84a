"""Samplers of slices that meet more than one storage, and storages that are written past the buffer."""

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import CheckpointError, ContractError
from rl.replay import (
    LazyTensorStorage,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
)


def rows(start, stop, episode):
    x = torch.arange(start, stop)
    done = (x % episode == episode - 1).unsqueeze(-1)
    return TensorDict({"x": x, ("next", "done"): done}, batch_size=x.shape)


def make(sampler, storage=None):
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(20) if storage is None else storage, sampler=sampler, batch_size=300
    )


def crosses(x, episode):
    name = x.view(-1, 3) // episode
    return bool((name != name[:, :1]).any())


@pytest.mark.parametrize("kind", [SliceSampler, SliceSamplerWithoutReplacement])
def test_a_sampler_of_a_buffer_serves_no_other_storage(kind):
    sampler = kind(slice_len=3)
    buffer = make(sampler)
    buffer.extend(rows(0, 20, 5))
    other = LazyTensorStorage(20)
    other.set(torch.arange(20), rows(0, 20, 7))
    with pytest.raises(ContractError, match=f"{kind.__name__} belongs to another buffer: use one sampler"):
        make(sampler)
    with pytest.raises(ContractError, match="belongs to another buffer"):
        sampler.sample(other, 6)
    assert not crosses(buffer.sample()["x"], 5)


def test_a_sampler_alone_may_go_from_storage_to_storage():
    sampler = SliceSampler(slice_len=3)
    storages = {episode: LazyTensorStorage(20) for episode in (5, 7)}
    for episode, storage in storages.items():
        storage.set(torch.arange(20), rows(0, 20, episode))
    for _ in range(3):
        for episode, storage in storages.items():
            index, _ = sampler.sample(storage, 300)
            assert not crosses(storage.get(index)["x"], episode)


def test_rows_that_are_written_after_a_state_was_loaded_are_seen():
    first, second = make(SliceSampler(slice_len=3)), make(SliceSampler(slice_len=3))
    first.extend(rows(0, 20, 100))
    second.load_state_dict(first.state_dict())
    second.storage.set(torch.arange(20), rows(0, 20, 5))
    assert not crosses(second.sample()["x"], 5)


def test_no_slice_crosses_the_cursor_of_environments_that_began_past_the_buffer():
    buffer = make(SliceSampler(slice_len=3), LazyTensorStorage(24, ndim=2))

    def batch(start, count):
        x = torch.arange(start, start + count).view(-1, 4)
        return TensorDict({"x": x, "episode": torch.zeros_like(x)}, batch_size=x.shape)

    buffer.storage.set(torch.arange(8), batch(0, 8))
    buffer.sample()
    for start in range(8, 28, 4):
        buffer.extend(batch(start, 4))
    buffer.storage.set(torch.arange(4), batch(24, 4))  # the same rows again
    sample = buffer.sample()["x"].view(-1, 3)
    assert sample.diff(dim=1).unique().tolist() == [1]
    assert 25 in sample


def test_the_state_of_a_sampler_of_rows_is_refused():
    with pytest.raises(CheckpointError, match="SliceSamplerWithoutReplacement: this state lacks trajectories"):
        SliceSamplerWithoutReplacement(slice_len=3).load_state_dict(SamplerWithoutReplacement().state_dict())
