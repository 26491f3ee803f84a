"""Queries of trajectories against the episodes that were laid down."""

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import ArgumentError, ContractError, ShapeError
from rl.replay import (
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    ReplayBufferEnsemble,
    SliceSampler,
    TensorDictReplayBuffer,
    Trajectory,
    filter_trajectories,
    find_start_stop_traj,
    iter_trajectories,
    traj,
)

LENGTHS = (3, 1, 4, 2, 5)


def steps(ids=True, start=0):
    """Episodes of `LENGTHS`; the reward is the number of the step, the last episode has no end."""
    places = [(episode, step) for episode, length in enumerate(LENGTHS) for step in range(length)]
    done = torch.tensor([step == LENGTHS[episode] - 1 and episode < 4 for episode, step in places])
    reward = torch.tensor([float(step) for _, step in places]).unsqueeze(-1)
    data = TensorDict({"x": torch.arange(len(places)) + start}, batch_size=[len(places)])
    data["next"] = TensorDict(reward=reward, done=done.unsqueeze(-1), batch_size=[len(places)])
    if ids:
        data["collector", "traj_ids"] = torch.tensor([episode for episode, _ in places])
    return data


def by_loop(end, cursor):
    """Rows of each trajectory of a ring, followed step by step, by their last row."""
    count, found = len(end), {}
    last = [bool(flag) or row == cursor for row, flag in enumerate(end)]
    if not any(last):
        last[-1] = True
    for stop in range(count):
        if last[stop]:
            rows, row = [stop], (stop - 1) % count
            while not last[row] and row != stop:
                rows.insert(0, row)
                row = (row - 1) % count
            found[stop] = rows
    return list(found.values())


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("full", [True, False])
def test_boundaries_equal_those_of_a_loop(seed, full):
    torch.manual_seed(seed)
    end = torch.rand(9, 3) < (0.0, 0.2, 0.6)[seed % 3]
    cursor = None if seed % 2 else int(torch.randint(9, ()))
    for cut in {cursor, None} if cursor is None else {cursor}:
        start, stop, length = find_start_stop_traj(end=end, at_capacity=full, cursor=cut)
        expected = []
        for element in range(3):
            column = end[:, element].clone()
            column[-1] |= not full
            expected += [(rows, element) for rows in by_loop(column, cut if full else None)]
        assert start.tolist() == [[rows[0], element] for rows, element in expected]
        assert stop.tolist() == [[rows[-1], element] for rows, element in expected]
        assert length.tolist() == [len(rows) for rows, _ in expected]


def test_boundaries_from_ids_and_wrong_arguments():
    ids = torch.tensor([5, 5, 0, 1, 1, 5])
    start, stop, length = find_start_stop_traj(trajectory=ids, at_capacity=True, cursor=range(2, 3))
    assert (start.flatten().tolist(), stop.flatten().tolist()) == ([5, 2, 3], [1, 2, 4])
    assert length.tolist() == [3, 1, 2]
    for wrong in ({}, {"end": ids > 0, "trajectory": ids}, {"end": ids[:0] > 0}):
        with pytest.raises(ArgumentError, match="one of trajectory and end"):
            find_start_stop_traj(at_capacity=True, **wrong)


@pytest.mark.parametrize("ids", [True, False])
def test_trajectories_of_a_batch(ids, recwarn):
    found = list(iter_trajectories(steps(ids=ids)))
    assert [one.length for one in found] == [*LENGTHS]
    assert torch.cat([one.x for one in found]).tolist() == [*range(15)]
    assert bool(recwarn.list) is not ids
    assert list(iter_trajectories(steps()[:0])) == []
    with pytest.raises(ShapeError, match="steps"):
        list(iter_trajectories(steps().reshape(3, 5)))


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (traj.length > 2, [0, 2, 4]),
        (traj.reward.sum() >= 6, [2, 4]),
        (traj.total_reward == 1, [3]),
        ((traj.reward > 3).any(), [4]),
        ((traj.x < 8).all() & ~(traj.length == 1), [0, 2]),
        ((traj.length == 1) | (traj.x.first() == 8), [1, 3]),
        (traj.reward.mean() < 1, [1, 3]),
        (traj["next", "reward"].max() == 2, [0]),
        (traj.x.min() <= 3, [0, 1]),
        (~(traj.done.last() == 1), [4]),
        (lambda one: one.x[0] == 3, [1]),
        (None, [0, 1, 2, 3, 4]),
    ],
)
def test_conditions_select_the_trajectories_of_a_naive_choice(condition, expected):
    data = steps()
    found = filter_trajectories(data, condition)
    assert [int(one["collector", "traj_ids"][0]) for one in found] == expected
    buffer = ReplayBuffer(storage=LazyTensorStorage(20))
    buffer.extend(data)
    assert [int(one.data["collector", "traj_ids"][0]) for one in buffer.query(condition)] == expected


def test_conditions_say_what_is_missing():
    for wrong in (lambda: filter_trajectories(steps(), traj.x > 3), lambda: (traj.x > 3) & (traj.length > 1)):
        with pytest.raises(TypeError, match=r"add \.any\(\) or \.all\(\)"):
            wrong()
    with pytest.raises(TypeError, match="combine conditions with &"):
        bool(traj.length > 1)
    with pytest.raises(ContractError, match=r"no entry 'speed'.*it has: 'x'"):
        filter_trajectories(steps(), traj.speed.sum() > 1)
    with pytest.raises(AttributeError, match="no entry 'speed'"):
        next(iter_trajectories(steps())).speed  # noqa: B018
    assert ((traj.reward.sum() > 1) & (traj.length > 1)).required_keys() == {"reward"}
    assert repr((traj.reward.sum() > 1) & (traj.length > 1)) == (
        "TrajectoryPredicate(((traj.reward.sum() > 1) & (traj.length > 1)))"
    )


def test_a_trajectory_is_indexed_by_steps_and_by_keys():
    one = Trajectory(steps()[4:8])
    assert (len(one), one[1:3].x.tolist(), one[0]["x"].item()) == (4, [5, 6], 4)
    assert torch.equal(one["next", "reward"], one.reward)
    assert one.get("speed", 3) == 3
    assert "x" in one.keys()
    with pytest.raises(ShapeError, match="steps"):
        Trajectory(steps().reshape(3, 5))


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
@pytest.mark.parametrize("sliced", [True, False])
def test_a_ring_is_read_from_its_oldest_row(storage, sliced):
    options = {"sampler": SliceSampler(slice_len=1)} if sliced else {}
    buffer = TensorDictReplayBuffer(storage=storage(20), batch_size=2, **options)
    buffer.extend(steps())
    second = steps(start=15)
    second["collector", "traj_ids"] += 5
    buffer.extend(second)
    found = [one.x.tolist() for one in buffer.query()]
    assert torch.cat([torch.tensor(one) for one in found]).tolist() == [*range(10, 30)]
    assert [len(one) for one in found] == [5, *LENGTHS]


@pytest.mark.parametrize("sliced", [True, False])
def test_environments_of_a_storage_are_kept_apart(sliced):
    options = {"sampler": SliceSampler(slice_len=1)} if sliced else {}
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(40, ndim=2), batch_size=2, **options)
    other = steps(start=100)
    other["collector", "traj_ids"] += 10
    buffer.extend(torch.stack([steps(), other]))
    found = sorted(one.x.tolist() for one in buffer.query())
    expected = [part.tolist() for start in (0, 100) for part in (torch.arange(15) + start).split(LENGTHS)]
    assert found == expected


def test_an_ensemble_returns_the_trajectories_of_each_member_in_turn():
    members = [TensorDictReplayBuffer(storage=LazyTensorStorage(20)) for _ in range(2)]
    for start, member in zip((0, 100), members, strict=True):
        member.extend(steps(start=start))  # the ids of both are the same, and neither has an end in its last row
    found = ReplayBufferEnsemble(*members).query()
    assert [one.length for one in found] == [*LENGTHS, *LENGTHS]
    assert torch.cat([one.x for one in found]).tolist() == [*range(15), *range(100, 115)]
    members[1].extend(steps(start=200))  # overwrites the oldest rows
    found = ReplayBufferEnsemble(*members).query((traj.x >= 100).all() & (traj.length == 5))
    assert [one.x.tolist() for one in found] == [[*range(110, 115)], [*range(210, 215)]]
    found = ReplayBufferEnsemble(*members).query(lambda one: one.length == 1, trajectory_key=("collector", "traj_ids"))
    assert [one.x.item() for one in found] == [3, 203]


def test_a_buffer_without_trajectories_or_rows():
    assert ReplayBuffer(storage=LazyTensorStorage(20)).query() == []
    buffer = ReplayBuffer(storage=LazyTensorStorage(20))
    buffer.extend(TensorDict(x=torch.arange(3), run=torch.tensor([0, 0, 1]), batch_size=[3]))
    assert [one.length for one in buffer.query(trajectory_key="run")] == [2, 1]
    with pytest.raises(ContractError, match="where trajectories end"):
        buffer.query()
