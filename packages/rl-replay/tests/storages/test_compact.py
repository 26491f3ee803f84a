"""Compact rows against plain ones: the same samples, bit by bit, under every sampler."""

import pickle

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import ArgumentError, CheckpointError, ContractError
from rl.replay import (
    LazyTensorStorage,
    PrioritizedSampler,
    RandomSampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
)


class Envs:
    """Steps of environments with episodes of random lengths, partial resets, and NaN and -0.0 in observations."""

    def __init__(self, count, seed=0, same=False):
        self.generator = torch.Generator().manual_seed(seed)
        self.count, self.same = count, same
        self.pixels, self.state = self.new(count)

    def new(self, count):
        pixels = torch.randint(256, (count, 3, 5), generator=self.generator, dtype=torch.uint8)
        state = torch.randn(count, 3, generator=self.generator)
        state[:, 0] = -0.0
        state[::2, 1] = torch.nan
        return (pixels * 0, state * 0) if self.same else (pixels, state)

    def step(self):
        after_pixels, after_state = self.new(self.count)
        done = torch.rand(self.count, 1, generator=self.generator) < 0.2
        now = {"pixels": self.pixels, "state": self.state, "done": torch.zeros_like(done)}
        after = {"pixels": after_pixels, "state": after_state, "done": done, "reward": after_state[:, :1]}
        data = TensorDict({**now, "action": torch.zeros(self.count), "next": after}, batch_size=[self.count])
        fresh_pixels, fresh_state = self.new(self.count)
        self.pixels = torch.where(done.unsqueeze(-1), fresh_pixels, after_pixels)
        self.state = torch.where(done, fresh_state, after_state)
        return data.clone()

    def batch(self, steps):
        return torch.stack([self.step() for _ in range(steps)], 1)


SAMPLERS = {
    "random": RandomSampler,
    "passes": SamplerWithoutReplacement,
    "priorities": lambda: PrioritizedSampler(42, 0.6, 0.4, backend="torch"),
    "slices": lambda: SliceSampler(slice_len=2),
    "short slices": lambda: SliceSampler(slice_len=4, strict_length=False),
    "slice passes": lambda: SliceSamplerWithoutReplacement(slice_len=2, strict_length=False),
}
WRITES = {  # environments, steps of a batch, ndim, flatten
    "one environment, flat": (1, 7, 1, True),
    "one step": (1, 1, 1, True),
    "a step of each of six": (6, 1, 1, True),
    "flattened": (3, 7, 1, True),
    "environments": (3, 7, 2, False),
}


def bits(one, two):
    for key in one.keys(include_nested=True, leaves_only=True):
        first, second = (td[key].contiguous().reshape(len(td), -1).view(torch.uint8) for td in (one, two))
        assert torch.equal(first, second), key
    assert set(one.keys(True)) == set(two.keys(True))


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
@pytest.mark.parametrize(("count", "steps", "ndim", "flat"), WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("same", [False, True], ids=["", "equal observations"])
def test_samples_are_those_of_the_plain_storage(sampler, count, steps, ndim, flat, same):
    plain, compact = (
        TensorDictReplayBuffer(
            storage=LazyTensorStorage(42, ndim=ndim, compact=kind),
            sampler=sampler(),
            batch_size=8,
            generator=torch.Generator().manual_seed(3),
        )
        for kind in (False, True)
    )
    envs = Envs(count, same=same)
    for turn in range(max(2, 200 // (count * steps))):
        batch = envs.batch(steps)
        batch = batch.reshape(-1) if flat else batch
        plain.extend(batch)
        compact.extend(batch)
        if turn % 5 == 1:
            bits(plain[:], compact[:])
            bits(plain.sample(), compact.sample())
    bits(plain[7].unsqueeze(0), compact[7].unsqueeze(0))
    bits(plain[[5, 5, 1]], compact[[5, 5, 1]])


def slots(storage):
    return sum(storage.state_dict()["next"]["after"] < 0).item()


@pytest.mark.parametrize(("count", "steps", "ndim", "flat"), WRITES.values(), ids=WRITES)
def test_observations_are_stored_once(count, steps, ndim, flat):
    storage = LazyTensorStorage(420, ndim=ndim, compact=True)
    buffer, envs = TensorDictReplayBuffer(storage=storage), Envs(count)
    for _ in range(-(-1000 // (count * steps))):
        batch = envs.batch(steps)
        buffer.extend(batch.reshape(-1) if flat else batch)
    ends = int(buffer[:]["next", "done"].sum())
    assert slots(storage) <= ends + count
    assert len(next(iter(storage._next._ends.values()))) <= 2 * (ends + count) + 64


def test_rows_written_in_any_order():
    generator = torch.Generator().manual_seed(0)
    plain, compact = LazyTensorStorage(30), LazyTensorStorage(30, compact=True)
    envs = Envs(2)
    for storage in (plain, compact):
        storage.set(torch.arange(30), Envs(2, seed=5).batch(15).reshape(-1))
    for _ in range(60):
        steps = int(torch.randint(1, 6, (1,), generator=generator))
        batch = envs.batch(steps).reshape(-1)
        index = torch.randperm(30, generator=generator)[: len(batch)]
        for storage in (plain, compact):
            storage.set(index, batch)
        bits(plain.get(slice(None)), compact.get(slice(None)))
    twice = torch.tensor([3, 8, 3, 9])
    batch = envs.batch(2).reshape(-1)
    compact.set(twice, batch)
    bits(compact.get(torch.tensor([8, 3, 9])), batch[1:])
    plain.set(twice[1:], batch[1:])
    bits(plain.get(slice(None)), compact.get(slice(None)))
    compact.set(slice(4, 6), batch[:2])
    plain.set(slice(4, 6), batch[:2])
    bits(plain.get(slice(None)), compact.get(slice(None)))


def test_batches_of_changing_order_and_size():
    generator = torch.Generator().manual_seed(0)
    plain, compact = (TensorDictReplayBuffer(storage=LazyTensorStorage(60, compact=kind)) for kind in (False, True))
    groups = [Envs(count, seed=count) for count in (1, 2, 5)]
    for _ in range(60):
        which, steps, by_step, at = (int(torch.randint(high, (1,), generator=generator)) for high in (3, 4, 2, 3))
        batch = groups[which].batch(steps + 1)
        batch = (batch.transpose(0, 1) if by_step else batch).reshape(-1)
        with torch.inference_mode(bool(at)):
            for buffer in (plain, compact):
                buffer.extend(batch)
                buffer[-1 - at : len(buffer) - at] = batch[:1]  # an open row is replaced
        bits(plain[:], compact[:])
        if at == 1:
            compact.load_state_dict(compact.state_dict())


def filled(seed=0, turns=9):
    storage = LazyTensorStorage(42, ndim=2, compact=True)
    buffer, envs = TensorDictReplayBuffer(storage=storage), Envs(2, seed)
    for _ in range(turns):
        buffer.extend(envs.batch(7))
    return buffer, envs


def test_states_continue_and_damaged_ones_are_refused(tmp_path):
    one, envs = filled()
    two, _ = filled(seed=1)
    one.dumps(tmp_path)
    two.loads(tmp_path)
    copy = pickle.loads(pickle.dumps(one.storage))
    bits(one[:], copy.get(slice(None)))
    for _ in range(8):
        bits(one[:], two[:])
        assert slots(one.storage) == slots(two.storage)
        batch = envs.batch(7)
        one.extend(batch)
        two.extend(batch)
    good = one.state_dict()

    def damaged(change):
        state = one.state_dict()
        change(state["storage"]["next"])
        return state

    changes = [
        lambda s: s["after"].__setitem__(0, 99),
        lambda s: s["after"].__setitem__(s["after"] < 0, -1),
        lambda s: s["after"].__setitem__(s["after"] >= 0, 3),
        lambda s: s.__setitem__("after", s["after"][:-1]),
        lambda s: s["ends"].pop(),
        lambda s: s["ends"].__setitem__(0, [s["ends"][0][0], s["ends"][0][1][:-1]]),
        lambda s: s.__setitem__("open", torch.arange(42)),
        lambda s: s.pop("open"),
    ]
    for change in changes:
        with pytest.raises(CheckpointError):
            two.load_state_dict(damaged(change))
        bits(two[:], one[:])
    plain = TensorDictReplayBuffer(storage=LazyTensorStorage(42, ndim=2))
    with pytest.raises(CheckpointError, match="next"):
        plain.load_state_dict(good)
    one.empty()
    assert len(one) == 0
    one.extend(Envs(2).batch(7))
    assert len(one.sample(5)) == 5


def test_what_cannot_be_compact_is_refused():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(5, compact=True))
    with pytest.raises(ContractError, match="leave compact out"):
        buffer.extend(TensorDict(x=torch.zeros(3), batch_size=[3]))
    assert len(buffer) == 0
    with pytest.raises(ArgumentError, match="one process"):
        TensorDictReplayBuffer(storage=LazyTensorStorage(5, compact=True), shared=True)
