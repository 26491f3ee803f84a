"""Trajectory numbers and splitting against naive loops."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from rl.collectors import split_trajectories

# any pattern of done flags is numbered, which an environment would have to play first
from rl.collectors._trajectories import number_trajectories
from rl.core.errors import ArgumentError, ContractError, ShapeError

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


def test_keys_of_ids_flags_and_mask_are_chosen_as_in_torchrl():
    data = TensorDict({"x": torch.arange(8).reshape(2, 4)}, [2, 4])
    data["next", "over"] = torch.tensor([[False, True, False, False], [True, False, False, False]]).unsqueeze(-1)

    def rows(parts, mask):
        return [row[keep].tolist() for row, keep in zip(parts["x"], parts[mask], strict=True)]

    for key in ("over", ("next", "over")):
        found = split_trajectories(data, done_key=key)
        assert rows(found, ("collector", "mask")) == [[0, 1], [2, 3], [4], [5, 6, 7]]
    ids = torch.tensor([[0, 0, 1, 1], [2, 3, 3, 3]])
    for prefix, at in (("info", ("info",)), ((), ()), (("a", "b"), ("a", "b"))):
        named = data.clone().set((*at, "traj_ids"), ids)
        found = split_trajectories(named, prefix=prefix)
        assert rows(found, (*at, "mask")) == [[0, 1], [2, 3], [4], [5, 6, 7]]
    found = split_trajectories(data.set("run", ids), trajectory_key="run")
    assert rows(found, ("collector", "mask")) == [[0, 1], [2, 3], [4], [5, 6, 7]]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [True, torch.jagged])
def test_trajectories_as_nested_tensors(layout):
    ids = torch.tensor([[0, 0, 0, 1], [2, 3, 3, 3]])
    data = TensorDict({"x": torch.arange(16.0).reshape(2, 4, 2), ("collector", "traj_ids"): ids}, [2, 4])
    nested, rows = split_trajectories(data, as_nested=layout), split_trajectories(data)
    assert nested.batch_size[0] == 4
    for part, row, keep in zip(nested["x"].unbind(), rows["x"], rows["collector", "mask"], strict=True):
        assert torch.equal(part, row[keep])
    with pytest.raises(ArgumentError, match="got both"):
        split_trajectories(data, as_nested=True, padded=False)


def test_a_single_step_is_not_split():
    with pytest.raises(ShapeError, match="got a single step without batch"):
        split_trajectories(TensorDict(x=torch.zeros(2)))
