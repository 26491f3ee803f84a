"""Trajectory numbers and splitting against naive loops."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from rl.collectors import split_trajectories
from rl.collectors._trajectories import number_trajectories
from rl.core.errors import ContractError

patterns = st.tuples(st.integers(1, 4), st.integers(1, 8)).flatmap(
    lambda shape: st.lists(
        st.lists(st.booleans(), min_size=shape[1], max_size=shape[1]), min_size=shape[0], max_size=shape[0]
    )
)


@given(patterns, st.integers(0, 5))
def test_numbers_are_those_of_a_naive_loop(pattern, offset):
    done = torch.tensor(pattern)
    elements, steps = done.shape
    current = torch.arange(offset, offset + elements)
    free = offset + elements
    now, expected = current.tolist(), []
    for t in range(steps):
        expected.append(list(now))
        for i in range(elements):
            if done[i, t]:
                now[i], free = free, free + 1
    ids, coming, new_free = number_trajectories(done, current, offset + elements)
    assert ids.T.tolist() == expected
    assert coming.tolist() == now
    assert new_free == free


@given(patterns)
def test_split_gives_each_trajectory_its_row(pattern):
    done = torch.tensor(pattern)
    ids, _, _ = number_trajectories(done, torch.arange(done.shape[0]), done.shape[0])
    data = torch.arange(1, done.numel() + 1).reshape(done.shape)
    expected, row = [], []
    for i in range(done.shape[0]):
        for t in range(done.shape[1]):
            row.append(data[i, t].item())
            if done[i, t] or t == done.shape[1] - 1:
                expected.append(row)
                row = []
    batch = TensorDict({"x": data, "next": {"done": done.unsqueeze(-1)}}, done.shape)
    for given_ in (batch, batch.clone().set(("collector", "traj_ids"), ids)):
        parts = split_trajectories(given_)
        mask = parts["collector", "mask"]
        assert [values[keep].tolist() for values, keep in zip(parts["x"], mask, strict=True)] == expected
        assert (parts["x"][~mask] == 0).all()


def test_split_names_what_it_misses():
    with pytest.raises(ContractError, match=r"traj_ids.*neither.*keys: x.*track_traj_ids"):
        split_trajectories(TensorDict({"x": torch.zeros(3)}, [3]))


def test_flat_trajectories_have_the_steps_of_the_padded_ones():
    ids = torch.tensor([[0, 0, 2, 2], [1, 3, 3, 3]])
    data = TensorDict({"x": torch.arange(8).reshape(2, 4), ("collector", "traj_ids"): ids}, [2, 4])
    rows, flat = split_trajectories(data), split_trajectories(data, padded=False)
    assert torch.equal(flat["x"], rows["x"][rows["collector", "mask"]])
    assert flat["collector", "lengths"].tolist() == [2, 2, 2, 2, 1, 3, 3, 3]
    flat["x"].zero_()
    assert data["x"].sum() > 0
