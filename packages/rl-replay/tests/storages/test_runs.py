"""Writes of adjacent rows, and of batches in the common form, against writes by index."""

from functools import partial

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import ContractError, RLError, ShapeError, SpecError
from rl.replay import LazyMemmapStorage, LazyTensorStorage, ListStorage, ReplayBuffer


def rows(start, stop):
    x = torch.arange(start, stop)
    return TensorDict({"x": x, "next": {"wide": x.view(-1, 1, 1) + torch.zeros(2, 3)}}, x.shape)


STORAGES = [LazyTensorStorage, LazyMemmapStorage, ListStorage]


@pytest.mark.parametrize("make", STORAGES)
def test_a_slice_of_rows_is_written_as_its_indices_are(make):
    by_slice, by_index = make(20), make(20)
    for start, stop in ((0, 3), (3, 9), (2, 5), (8, 20), (0, 20), (19, 20)):
        data = rows(100 * start, 100 * start + stop - start)
        by_slice.set(slice(start, stop), data)
        by_index.set(torch.arange(start, stop), data)
        assert len(by_slice) == len(by_index)
        for one, other in zip(by_slice, by_index, strict=True):
            assert (one == other).all()


@pytest.mark.parametrize("make", STORAGES)
def test_a_slice_that_does_not_fit_is_refused(make):
    storage = make(20)
    storage.set(slice(0, 4), rows(0, 4))
    for index, data, error in (
        (slice(5, 8), rows(0, 3), IndexError),  # a gap
        (slice(4, 8), rows(0, 3), ShapeError),
        (slice(4, 6), rows(0, 2).exclude("x"), ContractError),
        (slice(4, 6), rows(0, 2).set("y", torch.zeros(2)), ContractError),
        (slice(4, 6), rows(0, 2).set("x", torch.zeros(2)), SpecError),
        (slice(4, 6), rows(0, 2).set("x", torch.zeros(2, 1).long()), ShapeError),
        (slice(4, 6), rows(0, 2).set("x", torch.zeros(2, dtype=torch.int64, device="meta")), RLError),
    )[: 6 if make is ListStorage else None]:  # a list keeps rows on their devices
        with pytest.raises(error):
            storage.set(index, data)
        assert [int(row["x"]) for row in storage] == [0, 1, 2, 3]


def test_rows_of_any_kind_reach_a_ring():
    buffer = ReplayBuffer(storage=LazyTensorStorage(7))
    expected = {}
    for start in range(0, 60, 3):
        data = rows(start, start + 3)
        if start % 2:
            data["next", "wide"].requires_grad_()
        if start % 4 == 3:
            data["x"] = torch.nn.Parameter(data["x"].float()).long()
        index = buffer.extend(data if start % 5 else torch.stack(list(data)))
        expected |= dict(zip(index.tolist(), range(start, start + 3), strict=True))
        assert buffer[:]["x"].tolist() == [expected[row] for row in sorted(expected)]
    assert not buffer[:]["next", "wide"].requires_grad
    assert buffer[:]["next", "wide"][:, 1, 2].tolist() == buffer[:]["x"].tolist()


@pytest.mark.parametrize("make", [LazyTensorStorage, LazyMemmapStorage, partial(LazyTensorStorage, compact=True)])
@pytest.mark.parametrize("envs", [(3,), (1,), (2, 2)])
def test_environments_lie_side_by_side_in_batches_of_any_number_of_steps(make, envs):
    buffer, written = ReplayBuffer(storage=make(40, ndim=len(envs) + 1)), 0
    for number, steps in enumerate([5, 5, 5, 1, 4, 2, 10, 7, 5, 5, 1]):
        lead = (*envs, steps)
        count = torch.Size(lead).numel()
        x = torch.arange(written, written + count).view(lead)
        batch = TensorDict({"x": x, "next": {"x": x + 1, "wide": x.view(*lead, 1, 1) + torch.zeros(2, 3)}}, lead)
        if number % 3 == 1:  # entries in the order of steps, as a loop over an environment stacks them
            batch = batch.apply(lambda cell: cell.transpose(0, 1).contiguous().transpose(0, 1))
        if number % 3 == 2:
            batch["next", "wide"].requires_grad_()
        index = buffer.extend(batch)
        assert index.view(-1, steps).T.flatten().equal(torch.arange(written, written + count) % 40)
        assert (buffer[index] == batch.reshape(-1)).all()
        written += count
