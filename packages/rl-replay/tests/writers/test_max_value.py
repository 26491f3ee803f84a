"""The writer of the largest values, against a sorted list."""

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import ArgumentError, CheckpointError, ContractError, SpecError
from rl.replay import (
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
)
from rl.testing import check_writer

STORAGES = {"tensor": LazyTensorStorage, "list": ListStorage}


def rows(values, name="score"):
    values = torch.as_tensor(values, dtype=torch.float32)
    return TensorDict({name: values, "x": 10 * values}, batch_size=[len(values)])


def buffer(storage=LazyTensorStorage, size=7, **options):
    writer = TensorDictMaxValueWriter("score", **options)
    return TensorDictReplayBuffer(storage=storage(size), writer=writer, batch_size=3)


@pytest.mark.parametrize("storage", STORAGES.values(), ids=STORAGES)
def test_the_largest_rows_stay(storage):
    made, generator, best = buffer(storage), torch.Generator().manual_seed(0), []
    for count in (1, 3, 20, 2, 1, 6, 9, 1, 1):
        values = torch.randint(100, (count,), generator=generator).float()
        before = {} if not best else dict(enumerate(made[:]["score"].tolist()))
        index = made.extend(rows(values))
        best = sorted([*best, *values.tolist()])[-7:]
        stored = made[:]
        assert sorted(stored["score"].tolist()) == best
        assert torch.equal(stored["x"], 10 * stored["score"])
        written = index[index >= 0]
        assert len(written.unique()) == len(written)
        assert torch.equal(stored["score"][written], values[index >= 0])
        for row, value in before.items():
            if row not in written.tolist():
                assert stored["score"][row] == value


@pytest.mark.parametrize(("reduction", "kept"), [("sum", 1), ("max", 2), ("min", 0), ("mean", 1), ("median", 3)])
def test_several_values_of_a_row_are_reduced(reduction, kept):
    values = torch.tensor([[3.0, 3, 3], [0, 4, 8], [0, 0, 9], [1, 5, 5]])
    made = buffer(size=1, reduction=reduction)
    assert made.extend(TensorDict(score=values, batch_size=[4]))[kept] == 0
    assert torch.equal(made[0]["score"], values[kept])


def test_rows_are_trajectories_ranked_by_their_returns():
    made = TensorDictReplayBuffer(storage=LazyTensorStorage(2), writer=TensorDictMaxValueWriter())
    reward = torch.rand(9, 5, 1)
    made.extend(TensorDict(next=TensorDict(reward=reward, batch_size=[9, 5]), batch_size=[9, 5]))
    assert set(made[:]["next", "reward"].sum((1, 2)).tolist()) == set(reward.sum((1, 2)).topk(2).values.tolist())


def test_add_equal_values_priorities_and_lists():
    made = TensorDictReplayBuffer(
        storage=ListStorage(2),
        writer=TensorDictMaxValueWriter("score"),
        sampler=PrioritizedSampler(2, 1.0, 1.0, eps=0.0, backend="torch"),
    )
    ranked = rows([3.0, 2, 2, 3, 4]).set("td_error", torch.ones(5))
    assert [made.add(row).item() for row in ranked] == [0, 1, -1, 1, 0]
    index = made.extend(list(rows([1.0, 9, 8]).set("td_error", torch.tensor([5.0, 0, 2])).unbind(0)))
    assert index.tolist() == [-1, 1, 0]
    assert set(made.sample(50)["score"].tolist()) == {8.0}


def test_states_continue_and_damaged_ones_are_refused():
    one, two = buffer(), buffer()
    one.extend(rows(range(20)))
    two.load_state_dict(one.state_dict())
    assert one.extend(rows([15.5, 3, 30])).tolist() == two.extend(rows([15.5, 3, 30])).tolist()
    state = one.state_dict()
    state["writer"]["values"] = state["writer"]["values"][1:]
    with pytest.raises(CheckpointError, match="values"):
        two.load_state_dict(state)
    with pytest.raises(CheckpointError, match="reduction"):
        buffer(reduction="max").load_state_dict(one.state_dict())
    over = TensorDictReplayBuffer(storage=one.storage, writer=TensorDictMaxValueWriter("score"))
    assert over.extend(rows([0.0, 100.0])).tolist()[0] == -1
    one.empty()
    assert sorted(one.extend(rows(range(3))).tolist()) == [0, 1, 2]


def test_a_refused_batch_changes_no_rank():
    made = buffer(size=2)
    made.extend(rows([1.0, 2.0]))
    with pytest.raises(ContractError, match="misses 'x'"):
        made.extend(rows([5.0, 6.0]).exclude("x"))
    assert sorted(made.writer.state_dict()["values"].tolist()) == [1.0, 2.0]
    made.extend(rows([1.5]))
    assert sorted(made[:]["score"].tolist()) == [1.5, 2.0]


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
def test_replaced_rows_are_ranked_again(storage):
    made = TensorDictReplayBuffer(storage=storage(3), writer=TensorDictMaxValueWriter("score"))
    made.extend(rows([1.0, 2, 3]))
    assert made[:]["score"].tolist() == [3, 2, 1]
    made[2] = rows([9.0])[0]
    assert made.extend(rows([4.0])).tolist() == [1]  # in the place of the 2
    made[[0, 1]] = rows([torch.nan, 0.0])
    assert made.state_dict()["writer"]["values"].tolist() == [-torch.inf, 0, 9]
    assert made.extend(rows([-1.0, 5.0])).tolist() == [-1, 0]


def test_bad_input():
    check_writer(TensorDictMaxValueWriter)
    with pytest.raises(ArgumentError, match="sum"):
        TensorDictMaxValueWriter(reduction="product")
    with pytest.raises(ContractError, match="score"):
        buffer().extend(rows([1.0], name="points"))
    with pytest.raises(SpecError, match="NaN"):
        buffer().extend(rows([1.0, torch.nan]))
    made = TensorDictReplayBuffer(storage=LazyTensorStorage(8, ndim=2), writer=TensorDictMaxValueWriter("score"))
    with pytest.raises(ArgumentError, match="ndim=1"):
        made.extend(rows([1.0, 2]).reshape(1, 2))
