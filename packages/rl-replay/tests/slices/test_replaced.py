"""Rows that are replaced in place: trajectories are those of the flags that are stored then."""

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import ShapeError
from rl.replay import (
    LazyTensorStorage,
    ListStorage,
    PrioritizedSliceSampler,
    RandomSampler,
    Sequence,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
)

KINDS = {
    "slices": lambda: {"sampler": SliceSampler(slice_len=2)},
    "passes": lambda: {"sampler": SliceSamplerWithoutReplacement(slice_len=2)},
    "priorities": lambda: {"sampler": PrioritizedSliceSampler(24, 1.0, 1.0, slice_len=2, backend="torch")},
    "windows": lambda: {"sampler": RandomSampler(), "sample_unit": Sequence(length=2)},
}


def batch(number, envs, steps=4):
    time = torch.arange(number * steps, (number + 1) * steps)
    x = 100 * torch.arange(envs).unsqueeze(1) + time
    return TensorDict({"x": x, ("next", "done"): (x % 7 == 6).unsqueeze(-1)}, x.shape)


def pairs(buffer):
    """All pairs of consecutive steps of a trajectory that are sampled."""
    passes = isinstance(buffer.sampler, SliceSamplerWithoutReplacement)
    sample = torch.cat([buffer.sample(1000) for _ in range(60 if passes else 1)])
    x = sample["x"].view(-1, 2)
    valid = sample["validity_mask"].view(-1, 2).all(1) if "validity_mask" in sample.keys() else x[:, 0] >= 0
    return set(map(tuple, x[valid].tolist()))


@pytest.mark.parametrize("writes", [2, 7])
@pytest.mark.parametrize("ndim", [1, 2, "list"])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_replaced_by_what_was_read(kind, ndim, writes, tmp_path):
    envs = 2 if ndim == 2 else 1
    storage = ListStorage(24) if ndim == "list" else LazyTensorStorage(24, ndim=ndim)
    buffer = TensorDictReplayBuffer(storage=storage, generator=torch.Generator().manual_seed(0), **KINDS[kind]())
    for number in range(writes):
        buffer.extend(batch(number, envs) if ndim == 2 else batch(number, 1)[0])
    stored = {*buffer[:]["x"].tolist()}

    def expected(ends):
        return {(x, x + 1) for x in stored if x + 1 in stored and x not in ends}

    ends = {x for x in stored if x % 7 == 6}
    assert pairs(buffer) == expected(ends)
    mask = torch.arange(len(buffer)) % 2 == 0
    for index in (5, -1, slice(1, 4), slice(None), [3, 0], mask):
        buffer[index] = buffer[index]
        assert pairs(buffer) == expected(ends)
    row = buffer[2].clone()
    row["next", "done"] = ~row["next", "done"]
    buffer[2] = row
    ends ^= {row["x"].item()}
    assert pairs(buffer) == expected(ends)
    buffer.dumps(tmp_path)
    buffer.loads(tmp_path)
    assert pairs(buffer) == expected(ends)
    buffer[4] = buffer[4]
    buffer.extend(batch(writes, envs) if ndim == 2 else batch(writes, 1)[0])  # before the table is read again
    stored = {*buffer[:]["x"].tolist()}
    assert pairs(buffer) == expected(ends | {x for x in batch(writes, envs)["x"].flatten().tolist() if x % 7 == 6})


def test_a_batch_of_environments_replaces_no_rows():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(24, ndim=2), sampler=SliceSampler(slice_len=2))
    buffer.extend(batch(0, 2))
    before = buffer[:]
    for index, rows, shape in ((slice(None), batch(1, 2), "2, 4"), (slice(5, 6), before[5:6].unsqueeze(1), "1, 1")):
        with pytest.raises(ShapeError, match=rf"as they are read, got \[{shape}\]; nothing was written"):
            buffer[index] = rows
    assert (buffer[:] == before).all()
    assert buffer.sample(8).batch_size == (8,)
