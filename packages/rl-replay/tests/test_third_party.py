"""Samplers and copies of rows by others, written against the protocols alone, work in the buffer."""

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import BrokenPluginWarning, RLError
from rl.core.hookspecs import hookimpl
from rl.core.registry import Registry
from rl.plugins import replay as replay_plugin
from rl.replay import LazyTensorStorage, ReplayBuffer, TensorDictReplayBuffer, TensorStorage

# storages ask a registry of the test which plugin copies rows
from rl.replay.storages import _successors as _row_gather
from rl.testing import ToyRowGather, check_sampler


class Proportional:
    """Draws in proportion to priorities that it keeps in one tensor."""

    ran_out = False

    def __init__(self, capacity=64):
        self.priority = torch.zeros(capacity, dtype=torch.float64)

    def sample(self, storage, batch_size, *, generator=None):
        rows = len(storage)
        if batch_size < 1 or rows == 0:
            raise RLError(f"Proportional: a batch of {batch_size} of {rows} rows")
        p = self.priority[:rows]
        index = torch.multinomial(p, batch_size, replacement=True, generator=generator)
        return index, {"priority_weight": (p[index] / p[p > 0].min()).reciprocal().float()}

    def extended(self, index, data):
        self.priority[index] = max(float(self.priority.max()), 1.0)

    def update_priority(self, index, priority):
        self.priority[index] = priority.double()

    def restart(self):
        pass

    def empty(self):
        self.priority.zero_()

    def state_dict(self):
        return {"priority": self.priority.clone()}

    def load_state_dict(self, state):
        self.priority.copy_(state["priority"])


def test_it_conforms():
    check_sampler(Proportional)


@pytest.mark.parametrize("kind", [ReplayBuffer, TensorDictReplayBuffer], ids=lambda k: k.__name__)
def test_it_draws_by_priority_and_its_weights_reach_the_sample(kind, tmp_path):
    buffer = kind(storage=LazyTensorStorage(20), sampler=Proportional(), batch_size=50)
    index = buffer.extend(TensorDict({"x": torch.arange(4)}, [4]))
    buffer.update_priority(index, torch.tensor([0.0, 1.0, 0.0, 3.0]))
    sample, info = buffer.sample(return_info=True)
    assert set(sample["x"].tolist()) == {1, 3}
    expected = torch.where(sample["x"] == 1, 1.0, 1 / 3)
    assert torch.allclose(info["priority_weight"], expected)
    assert ("priority_weight" in sample.keys()) == (kind is TensorDictReplayBuffer)
    assert ("index" in sample.keys()) == (kind is TensorDictReplayBuffer)
    buffer.dumps(tmp_path)
    other = kind(storage=LazyTensorStorage(20), sampler=Proportional(), batch_size=50)
    other.loads(tmp_path)
    assert torch.equal(other.sampler.priority, buffer.sampler.priority)


class Says:
    """Draws uniformly, and says something beside."""

    ran_out = False

    def __init__(self, info):
        self.info = info

    def sample(self, storage, batch_size, *, generator=None):
        return torch.randint(len(storage), (batch_size,), generator=generator), dict(self.info)

    def restart(self):
        pass


def says(info, data=None):
    rows = TensorDict(x=torch.arange(30), next=TensorDict(x=torch.arange(30), batch_size=[30]), batch_size=[30])
    return TensorDictReplayBuffer(
        storage=TensorStorage(rows if data is None else data), sampler=Says(info), batch_size=5
    )


@pytest.mark.parametrize("count", [1, 3, 6])
def test_what_a_sampler_says_of_another_number_of_rows_is_refused(count):
    with pytest.raises(RuntimeError, match="batch dimension mismatch"):
        says({"noise": torch.zeros(count)}).sample()


@pytest.mark.parametrize("value", [torch.ones(5), torch.ones(5, 2)], ids=["number", "row"])
@pytest.mark.parametrize("key", ["extra", "x", "next", ("next", "x"), ("next", "extra"), ("more", "extra")])
def test_what_a_sampler_says_is_in_the_sample_whatever_was_there(key, value):
    buffer = says({key: value})
    for _ in range(2):
        sample = buffer.sample()
        assert torch.equal(sample[key], value)
        assert sample["index"].shape == (5,)
        if key != "x":
            assert torch.equal(sample["x"], sample["index"])


def test_an_index_takes_the_place_of_a_datasets_own():
    for own in (torch.zeros(30), TensorDict(x=torch.zeros(30), batch_size=[30])):
        sample = says({}, TensorDict(index=own, x=torch.arange(30), batch_size=[30])).sample()
        assert torch.equal(sample["index"], sample["x"])


def test_a_sampler_may_say_other_things_in_each_draw():
    buffer = says({"a": torch.ones(5)})
    assert "a" in buffer.sample()
    buffer.sampler.info = {"b": torch.ones(5)}
    assert "b" in buffer.sample()
    assert "a" not in buffer.sample()


class Answers:
    def __init__(self, make):
        self.make = make

    @hookimpl
    def rl_row_gather(self, tensors):
        return self.make(tensors)


@pytest.fixture
def answered(monkeypatch):
    """Let a plugin answer who copies rows."""

    def answer(make):
        registry = Registry()
        registry.register(replay_plugin, "replay")
        registry.register(Answers(make), "fast")
        monkeypatch.setattr(_row_gather, "default", lambda: registry)

    return answer


def test_an_answer_that_copies_no_rows_is_named_and_passed_over(answered):
    answered(lambda tensors: 42)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20), batch_size=5)
    with pytest.warns(BrokenPluginWarning, match=r"fast: rl_row_gather returned 42.*RL_PLUGINS_DISABLE=fast"):
        buffer.extend(TensorDict(y=torch.arange(4), batch_size=[4]))
    sample = buffer.sample()
    assert torch.equal(sample["y"], sample["index"])


def test_rows_of_a_plugin_are_those_of_the_sample(answered):
    asked = []
    answered(lambda tensors: asked.append(tensors) or ToyRowGather(tensors))
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20), batch_size=5)
    buffer.extend(TensorDict(x=torch.arange(4), y=torch.eye(4), batch_size=[4]))
    assert [[tuple(tensor.shape) for tensor in tensors] for tensors in asked] == [[(20,), (20, 4)]]
    sample = buffer.sample()
    assert torch.equal(sample["x"], sample["index"])
    assert torch.equal(sample["y"], torch.eye(4)[sample["index"]])


def test_where_a_plugin_raises_torch_copies_rows(answered):
    def broken(tensors):
        raise OSError("no such library")

    answered(broken)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20), batch_size=5)
    with pytest.warns(BrokenPluginWarning, match="no such library"):
        buffer.extend(TensorDict(x=torch.arange(4), batch_size=[4]))
    sample = buffer.sample()
    assert torch.equal(sample["x"], sample["index"])
