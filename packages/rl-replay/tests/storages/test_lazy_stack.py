"""Lazy stacks of rows that differ."""

import torch
from tensordict import LazyStackedTensorDict, TensorDict

from rl.replay import LazyStackStorage, TensorDictReplayBuffer
from rl.testing import check_storage


def test_batches_are_lazy_stacks_and_states_continue():
    check_storage(lambda size: LazyStackStorage(size, ragged=False))
    one, two = (TensorDictReplayBuffer(storage=LazyStackStorage(10), batch_size=4) for _ in range(2))
    rows = [TensorDict({"x": torch.full((size,), size), f"only {size}": torch.zeros(1)}) for size in (1, 2, 3)]
    one.extend(rows)
    two.load_state_dict(one.state_dict())
    for buffer in (one, two):
        sample = buffer.sample()
        assert isinstance(sample, LazyStackedTensorDict)
        for row in sample.unbind(0):
            assert torch.equal(row["x"], rows[row["index"]]["x"])
            assert f"only {len(row['x'])}" in row.keys()
    one.storage.get(0)["x"].zero_()
    assert one[0]["x"] == 1
