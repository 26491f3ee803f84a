"""Transforms of a buffer in both directions."""

import copy

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import CheckpointError, ContractError
from rl.replay import (
    LazyTensorStorage,
    ListStorage,
    MultiStepTransform,
    PrioritizedSampler,
    ReplayBuffer,
    TensorDictReplayBuffer,
)


def rows(*values, key="x"):
    return TensorDict({key: torch.tensor(values, dtype=torch.float32)}, batch_size=[len(values)])


class Add:
    """Adds on samples, subtracts what is written."""

    def __init__(self, number):
        self.number = number

    def __call__(self, td):
        return td.set("x", td["x"] + self.number)

    def inv(self, td):
        return td.copy().set("x", td["x"] - self.number)


class Times(Add):
    def __call__(self, td):
        return td.set("x", td["x"] * self.number)

    def inv(self, td):
        return td.copy().set("x", td["x"] / self.number)


class Pairs:
    """Writes rows in pairs, and holds an odd one back."""

    def __init__(self):
        self.rest = None

    def __call__(self, td):
        return td

    def inv(self, td):
        td = td if self.rest is None else torch.cat([self.rest, td])
        even = len(td) // 2 * 2
        self.rest = td[even:] if even < len(td) else None
        return td[:even] if even else None

    def empty(self):
        self.rest = None

    def state_dict(self):
        return {"rest": None if self.rest is None else self.rest["x"].clone()}

    def load_state_dict(self, state):
        self.rest = None if state["rest"] is None else TensorDict({"x": state["rest"]}, batch_size=[1])


def make(transform=None, storage=LazyTensorStorage, kind=TensorDictReplayBuffer, **options):
    return kind(storage=storage(20), batch_size=4, transform=transform, **options)


@pytest.mark.parametrize("kind", [ReplayBuffer, TensorDictReplayBuffer])
def test_written_rows_go_from_the_last_transform_to_the_first_and_samples_back(kind):
    buffer = make(Add(1), kind=kind).append_transform(Times(2))
    given = rows(4, 8)
    assert buffer.extend(given).tolist() == [0, 1]
    assert given["x"].tolist() == [4, 8]
    assert buffer[:]["x"].tolist() == [4 / 2 - 1, 8 / 2 - 1]
    assert set(buffer.sample()["x"].tolist()) <= {4.0, 8.0}
    assert buffer.add(rows(6)[0]).tolist() == 2
    assert buffer[2]["x"] == 2


def test_a_function_maps_samples_only_and_inverted_it_maps_written_rows_only():
    def double(td):
        return td.set("x", td["x"] * 2)

    plain, inverted, given = make(double), make(), rows(3)
    plain.extend(given)
    inverted.append_transform(double, invert=True).extend(given)
    assert (plain[0]["x"], plain.sample()["x"][0]) == (3, 6)
    assert (inverted[0]["x"], inverted.sample()["x"][0]) == (6, 6)
    assert given["x"] == 3


def test_inverted_transforms_exchange_their_directions():
    buffer = make().append_transform(Times(4), invert=True)
    buffer.extend(rows(3))
    assert (buffer[0]["x"], buffer.sample()["x"][0]) == (12, 3)


def test_a_transform_without_an_inverse_is_not_called_on_written_rows():
    class Silent(Add):
        has = False

        def has_inverse(self):
            return self.has

    transform = Silent(1)
    buffer = make(transform)
    buffer.extend(rows(1))
    transform.has = True
    buffer.extend(rows(1))
    assert buffer[:]["x"].tolist() == [1, 0]


def test_nothing_to_write_gives_an_empty_index():
    for nothing in (None, TensorDict(batch_size=[0])):
        transform = Add(1)
        transform.inv = lambda td, nothing=nothing: nothing
        buffer = make(transform)
        for index in (buffer.extend(rows(1, 2)), buffer.add(rows(1)[0])):
            assert index.dtype == torch.int64
            assert index.shape == (0,)
        assert len(buffer) == buffer.write_count == 0


def test_rows_that_are_held_back_are_part_of_the_state_and_of_empty(tmp_path):
    one, two, three = make(Pairs()), make(Pairs()), make(Pairs())
    assert one.extend(rows(1, 2, 3)).tolist() == [0, 1]
    two.load_state_dict(one.state_dict())
    one.dumps(tmp_path)
    three.loads(tmp_path)
    for buffer in (one, two, three):
        assert buffer.extend(rows(4)).tolist() == [2, 3]
        assert buffer[:]["x"].tolist() == [1, 2, 3, 4]
        buffer.extend(rows(5))
        buffer.empty()
        assert buffer.extend(rows(6, 7)).tolist() == [0, 1]
        assert buffer[:]["x"].tolist() == [6, 7]


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
@pytest.mark.parametrize("bad", [rows(9, 9, key="y"), rows(*[9] * 30)], ids=["in the transform", "in the writer"])
def test_a_batch_that_is_refused_leaves_transform_and_buffer_as_they_were(storage, bad):
    buffer = make(Pairs(), storage=storage)
    buffer.extend(rows(1, 2, 3))
    with pytest.raises(Exception, match=r"y|RoundRobinWriter"):
        buffer.extend(bad)
    assert buffer.extend(rows(4)).tolist() == [2, 3]
    assert buffer[:]["x"].tolist() == [1, 2, 3, 4]


def test_a_state_of_other_transforms_changes_nothing():
    one, other = make(Pairs()), make()
    other.extend(rows(5, 6))
    one.extend(rows(1))
    with pytest.raises(CheckpointError, match=r"transforms with a state are \['Pairs'\]"):
        one.load_state_dict(other.state_dict())
    with pytest.raises(CheckpointError, match="append the same ones"):
        other.load_state_dict(one.state_dict())
    damaged = copy.deepcopy(one.state_dict())
    damaged["write_count"] = -1
    with pytest.raises(CheckpointError):
        one.load_state_dict(damaged)
    assert one.extend(rows(2)).tolist() == [0, 1]


def test_priorities_are_those_of_the_rows_that_are_written():
    class Reverse(Add):
        def inv(self, td):
            return td.flip(0)[:2]

    buffer = make(Reverse(0), sampler=PrioritizedSampler(20, 1.0, 1.0, eps=0.0, backend="torch"))
    buffer.extend(rows(1, 2, 3).set("td_error", torch.tensor([1.0, 0.0, 1.0])))
    assert buffer[:]["x"].tolist() == [3, 2]
    assert set(buffer.sample(50)["x"].tolist()) == {3.0}


def test_a_list_of_rows_is_refused_where_a_transform_maps_batches():
    buffer = make(Add(1), storage=ListStorage)
    with pytest.raises(ContractError, match=r"Add transforms written batches.*torch.stack\(rows\)"):
        buffer.extend([rows(1)[0], rows(2)[0]])
    assert len(buffer) == 0


def test_prefetched_samples_and_written_rows_are_mapped():
    buffer = make(Times(2), prefetch=2)
    buffer.extend(rows(2, 4))
    assert {value for _ in range(5) for value in buffer.sample()["x"].tolist()} <= {2.0, 4.0}


def test_the_repr_names_the_transforms():
    text = repr(make(MultiStepTransform(3, 0.9)).append_transform(Pairs()))
    assert "MultiStepTransform(n_steps=3" in text
    assert "Pairs" in text


class OwnRows(ListStorage):
    def get(self, index):
        return [self._rows[row] for row in index.tolist()]


@pytest.mark.parametrize("kind", [ReplayBuffer, TensorDictReplayBuffer])
def test_what_is_written_into_a_sample_is_not_in_a_row_that_the_collate_function_returned(kind):
    stored = [TensorDict(x=torch.zeros(3)) for _ in range(4)]
    buffer = kind(
        storage=OwnRows(4), collate_fn=lambda rows: rows[0], transform=lambda row: row.set("y", 1), batch_size=2
    )
    buffer.extend(stored)
    sample = buffer.sample()
    assert {"x", "y"} <= set(sample.keys())
    for row in buffer.storage.get(torch.arange(4)):
        assert set(row.keys()) == {"x"}
