"""`RayReplayBuffer` on a local cluster; `-m slow` runs it where Ray is installed."""

import os
import signal
import sys
import warnings
from functools import partial

import pytest
import torch
from tensordict import NonTensorStack, TensorDict

from rl.core.errors import CheckpointError, ContractError, MissingExtraError, RLError, ShapeError, WorkerError
from rl.replay import (
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    RayReplayBuffer,
    ReplayBuffer,
    SamplerWithoutReplacement,
    TensorDictReplayBuffer,
)


def test_without_ray_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r'pip install "rl-replay\[ray\]"'):
        RayReplayBuffer(storage=LazyTensorStorage(10))


@pytest.fixture(scope="module")
def ray():
    ray = pytest.importorskip("ray")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(num_cpus=4, log_to_driver=False, include_dashboard=False)
    yield ray
    ray.shutdown()


pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def batch(start, count):
    number = torch.arange(start, start + count)
    following = TensorDict(x=number + 1, half=number.to(torch.bfloat16), batch_size=[count])
    return TensorDict(x=number, next=following, batch_size=[count])


def both(**arguments):
    """The same buffer in this process and in an actor."""
    kind = arguments.get("replay_buffer_cls", TensorDictReplayBuffer)
    own = {name: value for name, value in arguments.items() if name != "replay_buffer_cls"}
    for name in ("storage", "sampler"):
        if callable(own.get(name)):
            own[name] = own[name]()
    generator = torch.Generator().manual_seed(0)
    return kind(**own, generator=generator), RayReplayBuffer(**arguments, generator=torch.Generator().manual_seed(0))


@pytest.mark.slow
def test_methods_give_what_those_of_the_buffer_give(ray, tmp_path):
    one, two = both(storage=partial(LazyTensorStorage, 20), sampler=SamplerWithoutReplacement, batch_size=4)
    with two:
        for start in (0, 12):
            assert torch.equal(one.extend(batch(start, 12)), two.extend(batch(start, 12)))
        assert torch.equal(one.add(batch(30, 1)[0]), two.add(batch(30, 1)[0]))
        assert (len(two), two.write_count, two.batch_size) == (20, 25, 4)
        for _ in range(3):
            assert (one.sample() == two.sample()).all()
        sample, info = two.sample(return_info=True)
        assert (sample == one.sample()).all()
        assert torch.equal(info["index"], sample["index"])
        assert sample["next", "half"].dtype == torch.bfloat16
        assert all((a == b).all() for a, b in zip(one, two, strict=True))
        assert (one[3:7] == two[3:7]).all()
        two[3] = one[3] = batch(50, 1)[0]
        assert (one[:] == two[:]).all()
        state = two.state_dict()
        two.dumps(tmp_path)
        two.empty()
        assert len(two) == 0
        two.load_state_dict(state)
        two.empty()
        two.loads(tmp_path)
        assert (one[:] == two[:]).all()
        two.append_transform(lambda td: td.set("y", td["x"] * 2))
        sample = two.sample()
        assert torch.equal(sample["y"], sample["x"] * 2)
        assert "SamplerWithoutReplacement" in repr(two)
    with pytest.raises(RLError, match="was shut down"):
        len(two)
    assert ray.is_initialized()  # it was there before


@pytest.mark.slow
def test_priorities_lists_and_prefetched_batches(ray):
    one, two = both(
        storage=LazyTensorStorage(10), sampler=partial(PrioritizedSampler, 10, 1.0, 1.0, backend="torch"), batch_size=8
    )
    with two:
        for buffer in (one, two):
            buffer.extend(batch(0, 10))
            buffer.update_priority(torch.arange(10), torch.zeros(10))
            sample = buffer[3:5].set("index", torch.arange(3, 5)).set("td_error", torch.ones(2))
            buffer.update_tensordict_priority(sample)
        assert (one.sample() == two.sample()).all()
        assert set(two.sample(50)["index"].tolist()) == {3, 4}
    one, two = both(storage=ListStorage(10), replay_buffer_cls=ReplayBuffer, batch_size=4, prefetch=2)
    with two:
        rows = TensorDict(x=torch.arange(6), text=NonTensorStack(*"abcdef"), batch_size=[6])
        for buffer in (one, two):
            buffer.extend(rows)
        for _ in range(3):
            first, second = one.sample(), two.sample()
            assert torch.equal(first["x"], second["x"])
            assert first.get("text").tolist() == second.get("text").tolist()


@pytest.mark.slow
def test_errors_of_the_buffer_pass_through(ray):
    with RayReplayBuffer(storage=LazyTensorStorage(5), batch_size=2) as buffer:
        with pytest.raises(ContractError, match="TensorDictReplayBuffer stores TensorDicts, got Tensor") as caught:
            buffer.extend(torch.arange(3))
        assert type(caught.value) is ContractError
        with pytest.raises(ShapeError, match="a batch of 6 rows for a storage of 5"):
            buffer.extend(batch(0, 6))
        with pytest.raises(ContractError, match="is empty"):
            buffer[3]
        with pytest.raises(CheckpointError, match="lacks types"):
            buffer.load_state_dict({})
        with pytest.raises(ContractError, match="no priorities"):
            buffer.update_priority(torch.arange(2), torch.ones(2))
        with pytest.raises(AttributeError, match=r"call\(name"):
            buffer.storage  # noqa: B018
        buffer.extend(batch(0, 5))
        with pytest.raises(IndexError, match="5 is outside"):
            buffer[5]
        assert buffer.call("sample", 3).shape == (3,)
    with pytest.raises(ContractError, match="batch_size must be"):
        RayReplayBuffer(storage=LazyTensorStorage(5), batch_size=0)
    with pytest.raises(ContractError, match="cannot be sent to the actor"):
        RayReplayBuffer(storage=LazyTensorStorage(5), transform=__import__("threading").Lock())


@pytest.mark.slow
def test_other_actors_write_into_it(ray):
    @ray.remote(num_cpus=1)
    def write(buffer, start):
        for step in range(20):
            buffer.extend(batch(start + step, 1))
        buffer.shutdown()  # that of another process; nothing happens
        return buffer.write_count

    with RayReplayBuffer(storage=LazyTensorStorage(100), batch_size=4) as buffer:
        counts = ray.get([write.remote(buffer, start) for start in (0, 1000)])
        assert max(counts) == 40
        assert sorted(buffer[:]["x"].tolist()) == [*range(20), *range(1000, 1020)]


@pytest.mark.slow
def test_an_actor_that_was_killed_is_an_error(ray):
    with RayReplayBuffer(storage=LazyTensorStorage(5), batch_size=2, transform=with_process) as buffer:
        buffer.extend(batch(0, 3))
        os.kill(int(buffer.sample()["process"][0]), signal.SIGKILL)
        with pytest.raises(WorkerError, match="the actor has ended, and its rows are lost"):
            sum(len(buffer) for _ in range(100))  # Ray takes a moment


def with_process(td):
    return td.set("process", torch.full(td.batch_size, os.getpid()))
