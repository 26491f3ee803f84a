"""Steps of old policies are removed."""

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import ArgumentError, ContractError, ShapeError
from rl.replay import LazyTensorStorage, PolicyAgeFilter, TensorDictReplayBuffer


def rows(version, key="policy_version"):
    version = torch.tensor(version)
    return TensorDict({key: version}, batch_size=version.shape)


def test_rows_within_the_age_stay_in_order():
    now = 5
    keep = PolicyAgeFilter(2, get_version=lambda: now)
    batch = rows([5, 2, 3, 4, 0])
    assert keep(batch)["policy_version"].tolist() == [5, 3, 4]
    assert batch.batch_size == (5,)
    now = 9
    assert keep(batch).batch_size == (0,)


def test_a_row_of_several_steps_is_as_old_as_its_oldest_step():
    keep = PolicyAgeFilter(1, ("stamp", "version"), get_version=lambda: 4)
    batch = rows([[4, 4], [2, 3], [3, 4]], ("stamp", "version"))
    assert keep(batch)["stamp", "version"].tolist() == [[4, 4], [3, 4]]


def test_samples_of_a_buffer_and_with_invert_what_is_written():
    sampled = TensorDictReplayBuffer(
        storage=LazyTensorStorage(10), batch_size=30, transform=PolicyAgeFilter(0, get_version=lambda: 3)
    )
    sampled.extend(rows([1, 3, 2]))
    sample = sampled.sample()
    assert 0 < len(sample) < 30
    assert set(sample["index"].tolist()) == {1}
    written = TensorDictReplayBuffer(storage=LazyTensorStorage(10), batch_size=30)
    written.append_transform(PolicyAgeFilter(0, get_version=lambda: 3), invert=True)
    assert written.extend(rows([1, 1])).tolist() == []
    assert written.extend(rows([1, 3, 2])).tolist() == [0]
    assert len(written.sample()) == 30


def test_wrong_input_is_named():
    keep = PolicyAgeFilter(1, get_version=lambda: 1)
    with pytest.raises(ContractError, match="PolicyVersion"):
        keep(rows([1], "version"))
    with pytest.raises(ShapeError, match=r"torch.float32 \[2\]"):
        keep(rows([1.0, 2.0]))
    with pytest.raises(ShapeError, match="expected integers"):
        keep(rows(1))
    with pytest.raises(ArgumentError, match="max_age"):
        PolicyAgeFilter(-1, get_version=lambda: 1)
    with pytest.raises(ArgumentError, match="get_version"):
        PolicyAgeFilter(1, get_version=3)
