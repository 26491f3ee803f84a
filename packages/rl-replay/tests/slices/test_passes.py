"""Slices in passes."""

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import ArgumentError, CheckpointError, ContractError
from rl.replay import LazyTensorStorage, ReplayBuffer, SliceSamplerWithoutReplacement, TensorStorage

LENGTHS = [3, 5, 1, 8, 4, 6, 2]


def dataset():
    episode = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))
    return TensorDict({"x": torch.arange(len(episode)), "episode": episode}, [len(episode)])


def make(batch_size=6, **arguments):
    return ReplayBuffer(
        storage=TensorStorage(dataset()),
        sampler=SliceSamplerWithoutReplacement(**arguments),
        batch_size=batch_size,
        generator=torch.Generator().manual_seed(0),
    )


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_pass_has_one_slice_of_each_trajectory_that_is_long_enough(drop_last):
    buffer = make(slice_len=3, drop_last=drop_last)
    for _ in range(5):
        batches = list(buffer)
        slices = torch.cat([batch["x"] for batch in batches]).view(-1, 3)
        assert slices.diff(dim=1).eq(1).all()
        seen = dataset()["episode"][slices]
        assert (seen == seen[:, :1]).all()
        found = sorted(seen[:, 0].tolist())
        assert found == [0, 1, 3, 4, 5] if not drop_last else len(set(found)) == 4
        assert [len(batch) for batch in batches] == ([6, 6] if drop_last else [6, 6, 3])
        assert batches[0]["is_init"].flatten().tolist() == [True, False, False] * 2


def test_short_trajectories_come_whole():
    batches = list(make(slice_len=3, strict_length=False))
    assert sum(int(batch["is_init"].sum()) for batch in batches) == 7
    assert sorted(len(set(b["episode"].tolist())) for b in batches) == [1, 2, 2, 2]


def test_slices_begin_everywhere():
    buffer, seen = make(slice_len=3), set()
    for _ in range(200):
        for batch in buffer:
            seen |= set(batch["x"].view(-1, 3)[:, 0].tolist())
    assert seen == {0, 3, 4, 5, 9, 10, 11, 12, 13, 14, 17, 18, 21, 22, 23, 24}


def test_orders():
    assert [b["episode"].unique().tolist() for b in make(slice_len=3, shuffle=False)] == [[0, 1], [3, 4], [5]]
    buffer = make(slice_len=3, batch_size=15)
    assert len({tuple(buffer.sample()["episode"].view(-1, 3)[:, 0].tolist()) for _ in range(30)}) > 20


def test_rows_that_are_written_begin_a_new_pass():
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(40), sampler=SliceSamplerWithoutReplacement(slice_len=3), batch_size=9
    )
    buffer.extend(dataset())
    buffer.sample()
    buffer.extend(TensorDict({"x": torch.arange(50, 54), "episode": torch.full((4,), 9)}, [4]))
    seen = torch.cat([buffer.sample()["episode"], buffer.sample()["episode"]]).unique()
    assert seen.tolist() == [0, 1, 3, 4, 5, 9]


def test_refusals():
    with pytest.raises(ArgumentError, match="drop_last leaves nothing of 5 trajectories in batches of 6 slices"):
        make(slice_len=3, drop_last=True).sample(18)
    state = make(slice_len=3).sampler.state_dict()
    with pytest.raises(CheckpointError, match="has shuffle=False, the state shuffle=True"):
        make(slice_len=3, shuffle=False).sampler.load_state_dict(state)
    with pytest.raises(ContractError, match="SliceSamplerWithoutReplacement has no priorities"):
        make(slice_len=3).update_priority(torch.tensor([0]), torch.tensor([1.0]))
    assert "drop_last=False, shuffle=True)" in repr(make(slice_len=3).sampler)
