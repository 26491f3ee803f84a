"""`check_slices` finds the first row whose successor belongs to another trajectory."""

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import ArgumentError, ContractError
from rl.replay import LazyTensorStorage, ListStorage, ReplayBuffer, SliceSampler, check_slices


def filled(rows, storage=None):
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(40) if storage is None else storage, sampler=SliceSampler(slice_len=2), batch_size=2
    )
    buffer.extend(rows)
    return buffer


def walk(environments, steps):
    path = torch.randn(environments, steps + 1, 3)
    done = torch.zeros(environments, steps, 1, dtype=torch.bool)
    after = TensorDict(observation=path[:, 1:], done=done, batch_size=done.shape[:2])
    return TensorDict(observation=path[:, :-1], next=after, batch_size=done.shape[:2]).clone()


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
def test_environments_stored_one_after_the_other_without_end_flags_fail(storage):
    rows = walk(3, 5).reshape(-1)
    buffer = filled(rows if storage is LazyTensorStorage else list(rows.unbind(0)), storage(40))
    with pytest.raises(ContractError, match=r"\('next', 'observation'\) of row 4 is not 'observation' of row 5"):
        check_slices(buffer)


@pytest.mark.parametrize("remedy", ["done", "ids", "ndim"])
def test_each_remedy_of_the_message_passes(remedy):
    rows = walk(3, 5)
    if remedy == "done":
        rows["next", "done"][:, -1] = True
    if remedy == "ids":
        rows["collector", "traj_ids"] = torch.arange(3).unsqueeze(1).expand(3, 5).clone()
    if remedy == "ndim":
        check_slices(filled(rows, LazyTensorStorage(30, ndim=2)))
    else:
        check_slices(filled(rows.reshape(-1)))


def test_rows_after_the_end_of_a_full_ring_are_compared():
    buffer = filled(walk(1, 20)[0], LazyTensorStorage(20))
    buffer.extend(walk(1, 7)[0])
    with pytest.raises(ContractError, match="of row 19 is not 'observation' of row 0"):
        check_slices(buffer)


def test_nan_equals_nan_and_other_entries_can_be_named():
    rows = walk(1, 5)[0]
    rows["observation"][2] = float("nan")
    rows["next", "observation"][1] = float("nan")
    check_slices(filled(rows))
    rows.rename_key_("observation", "pixels")
    with pytest.raises(ContractError, match="rows have no 'observation'"):
        check_slices(filled(rows))


def test_a_buffer_without_slice_sampler_is_refused():
    with pytest.raises(ArgumentError, match="SliceSampler, got a RandomSampler"):
        check_slices(ReplayBuffer())
