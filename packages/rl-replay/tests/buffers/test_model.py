"""The buffer against a naive model: a dict from place to row."""

import tempfile

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tensordict import TensorDict

from rl.core.errors import RLError
from rl.replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    RandomSampler,
    SamplerWithoutReplacement,
    TensorDictReplayBuffer,
)

STORAGES = {"list": ListStorage, "tensor": LazyTensorStorage, "memmap": LazyMemmapStorage}
SAMPLERS = {
    "random": RandomSampler,
    "passes": SamplerWithoutReplacement,
    "in-order": lambda: SamplerWithoutReplacement(shuffle=False),
    "drop-last": lambda: SamplerWithoutReplacement(drop_last=True),
}
BATCH = 3


def rows(start, count):
    number = torch.arange(start, start + count)
    return TensorDict(
        {
            "number": number,
            "agents": TensorDict({"obs": number.view(-1, 1, 1).expand(-1, 2, 3).float()}, batch_size=[count, 2]),
            "name": number.clone(),
            "next": {"flag": (number % 2 == 0).unsqueeze(-1)},
        },
        batch_size=[count],
    )


class Machine(RuleBasedStateMachine):
    """Random sequences of operations; after each, buffer and model agree."""

    @initialize(
        storage=st.sampled_from(sorted(STORAGES)),
        sampler=st.sampled_from(sorted(SAMPLERS)),
        size=st.integers(BATCH, 9),
        prefetch=st.sampled_from([0, 0, 2]),
    )
    def start(self, storage, sampler, size, prefetch):
        self.size, self.next = size, 0
        self.model: dict[int, int] = {}
        self.cursor = 0
        self.written = 0
        self.make = lambda seed: TensorDictReplayBuffer(
            storage=STORAGES[storage](size),
            sampler=SAMPLERS[sampler](),
            batch_size=BATCH,
            prefetch=prefetch,
            generator=torch.Generator().manual_seed(seed),
        )
        self.drop_last = sampler == "drop-last"
        self.buffer = self.make(0)

    def _write(self, count):
        places = [(self.cursor + i) % self.size for i in range(count)]
        for i, place in enumerate(places):
            self.model[place] = self.next + i
        self.cursor = (self.cursor + count) % self.size
        self.next += count
        self.written += count
        return places

    @rule(count=st.integers(1, 12))
    def extend(self, count):
        batch = rows(self.next, count)
        if count > self.size:
            with pytest.raises(RLError):
                self.buffer.extend(batch)
        else:
            assert self.buffer.extend(batch).tolist() == self._write(count)

    @rule()
    def add(self):
        index = self.buffer.add(rows(self.next, 1)[0])
        assert index.shape == ()
        assert [int(index)] == self._write(1)

    @rule(broken=st.sampled_from(["missing", "extra", "shape", "dtype"]))
    def refuse(self, broken):
        batch = rows(self.next, 2)
        if broken == "missing":
            del batch["next", "flag"]
        elif broken == "extra":
            batch["other"] = torch.zeros(2)
        elif broken == "shape":
            batch["number"] = torch.zeros(2, 1, dtype=torch.int64)
        else:
            batch["number"] = batch["number"].int()
        if self.written or self.model:
            with pytest.raises(RLError):
                self.buffer.extend(batch)

    @precondition(lambda self: len(self.model) >= BATCH)
    @rule(count=st.integers(1, 4))
    def sample(self, count):
        size = min(count, len(self.model))
        for sample in (self.buffer.sample(), self.buffer.sample(size)):
            assert 0 < len(sample) <= BATCH + 1
            assert (sample["number"] == sample["name"]).all()
            assert (sample["agents", "obs"] == sample["number"].view(-1, 1, 1)).all()
            assert (sample["next", "flag"].squeeze(-1) == (sample["number"] % 2 == 0)).all()
            assert ((sample["index"] >= 0) & (sample["index"] < len(self.model))).all()
        # The batch of another size was drawn right now, so it holds what the model holds.
        if size != BATCH:
            assert sample["number"].tolist() == [self.model[i] for i in sample["index"].tolist()]

    @rule(disk=st.booleans())
    def resume(self, disk):
        other = self.make(1)
        if disk:
            with tempfile.TemporaryDirectory() as folder:
                self.buffer.dumps(folder)
                other.loads(folder)
        else:
            other.load_state_dict(self.buffer.state_dict())
        if len(self.model) >= BATCH:
            for _ in range(4):
                one, two = self.buffer.sample(), other.sample()
                assert one.keys() == two.keys()
                assert torch.equal(one["index"], two["index"])
                assert torch.equal(one["number"], two["number"])
        self.buffer = other

    @rule()
    def empty(self):
        self.buffer.empty()
        self.model, self.cursor, self.written = {}, 0, 0

    @invariant()
    def agrees(self):
        if not hasattr(self, "buffer"):
            return
        assert len(self.buffer) == len(self.model)
        assert self.buffer.write_count == self.written
        if self.model:
            expected = [self.model[place] for place in range(len(self.model))]
            assert self.buffer[:]["number"].tolist() == expected
            assert int(self.buffer[-1]["next", "flag"]) == (expected[-1] % 2 == 0)


TestModel = Machine.TestCase
TestModel.settings = settings(
    max_examples=80, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
