"""Which slices are drawn, and how often, against lists of rows that are walked through one by one."""

import tempfile
from collections import defaultdict
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from rl.core.errors import ContractError
from rl.replay import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer

NAMES = ("collector", "traj_ids")


def batch(done, start=0, names=None):
    """Rows ``[*B]`` that are numbered from `start` on, with the flags `done`."""
    done = torch.as_tensor(done, dtype=torch.bool)
    x = torch.arange(start, start + done.numel()).view(done.shape)
    td = TensorDict({"x": x, ("next", "done"): done.unsqueeze(-1)}, batch_size=done.shape)
    return td if names is None else td.set(NAMES, torch.as_tensor(names))


def slices_of(sample):
    """Rows of each slice, told apart by is_init."""
    found = []
    for row, init in zip(sample["index"].tolist(), sample["is_init"].flatten().tolist(), strict=True):
        if init:
            found.append([])
        found[-1].append(row)
    return [tuple(rows) for rows in found]


class Row(NamedTuple):
    env: int
    end: bool
    name: int | None
    envs: int
    clock: int


class NaiveRing:
    """Rows by place; trajectories are found by walking through all of them."""

    def __init__(self, size):
        self.size, self.clock = size, 0
        self.rows = {}

    def write(self, ends, names=None):
        """Lists ``[envs][steps]`` of flags, and of names or None."""
        for step in range(len(ends[0])):
            for env, flags in enumerate(ends):
                name = None if names is None else names[env][step]
                self.rows[self.clock % self.size] = Row(env, bool(flags[step]), name, len(ends), self.clock)
                self.clock += 1

    def trajectories(self):
        """Lists of places, in the order of time."""
        found, last = [], {}
        for place, row in sorted(self.rows.items(), key=lambda item: item[1].clock):
            before, trajectory = last.get(row.env, (None, None))
            if before is None or before.end or row != before._replace(end=row.end, clock=before.clock + row.envs):
                trajectory = []
                found.append(trajectory)
            trajectory.append(place)
            last[row.env] = row, trajectory
        return found


def windows(trajectories, length, strict=True, span=(0, 0)):
    """All slices that may be drawn, with their probabilities."""
    if strict:
        trajectories = [rows for rows in trajectories if len(rows) >= length]
    found = defaultdict(float)
    for rows in trajectories:
        full = min(len(rows), length)
        left, right = min(span[0], full - 1), min(span[1], full - 1)
        begins = range(-left, len(rows) - full + right + 1)
        for begin in begins:
            window = tuple(rows[max(begin, 0) : begin + full])
            found[window] += 1 / len(begins) / len(trajectories)
    return dict(found)


class Scene:
    """A buffer and its model, and what may happen to them."""

    def __init__(self, data):
        self.data = data
        self.lanes = data.draw(st.sampled_from([0, 0, 1, 2, 3]), "lanes")  # 0: rows along one dimension
        self.changes = bool(self.lanes) and data.draw(st.booleans(), "lanes change")
        self.size = data.draw(st.sampled_from([12, 24, 36]), "size")
        self.named = data.draw(st.booleans(), "named")
        self.length = length = data.draw(st.integers(1, 5), "length")
        self.strict = data.draw(st.booleans(), "strict")
        sides = [(0, 0), (0, 0), (length - 1, length - 1), (length // 2, 0), (0, length // 2)]
        self.span = data.draw(st.sampled_from(sides), "span")
        self.buffer, self.model, self.written = self.make(), NaiveRing(self.size), 0

    def make(self):
        return TensorDictReplayBuffer(
            storage=LazyTensorStorage(self.size, ndim=2 if self.lanes else 1),
            sampler=SliceSampler(slice_len=self.length, strict_length=self.strict, span=self.span),
            generator=torch.Generator().manual_seed(0),
        )

    def flags(self, count):
        return torch.tensor(self.data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count), "done")) == 0

    def extend(self):
        steps = self.data.draw(st.sampled_from([1, 2, 3] if self.lanes else [1, 1, 2, 5, 9, self.size]), "steps")
        if self.changes:
            self.lanes = self.data.draw(st.integers(1, 4), "lanes")
        shape = (max(self.lanes, 1), steps)
        count = shape[0] * shape[1]
        done = self.flags(count)
        names = torch.arange(self.written, self.written + count) // 7 if self.named else None
        ids = None if names is None else names.view(shape).tolist()
        self.model.write(done.view(shape).tolist(), ids)
        rows = batch(done, self.written, names)
        if count == 1 and not self.lanes:
            self.buffer.add(rows[0])
        else:
            self.buffer.extend(rows.view(shape) if self.lanes else rows)
        self.written += count

    def touch(self):
        """Rows are changed where they lie, past the buffer."""
        rows = self.data.draw(st.lists(st.integers(0, len(self.buffer) - 1), min_size=1, max_size=4, unique=True))
        done, stored = self.flags(len(rows)), self.buffer[rows]
        stored["next", "done"] = done.unsqueeze(-1)
        self.buffer.storage.set(torch.tensor(rows), stored.view(1, -1) if self.lanes else stored)
        for place, end in zip(rows, done.tolist(), strict=True):
            self.model.rows[place] = self.model.rows[place]._replace(end=end)

    def resume(self):
        other = self.make()
        if self.data.draw(st.booleans(), "disk"):
            with tempfile.TemporaryDirectory() as folder:
                self.buffer.dumps(folder)
                other.loads(folder)
        else:
            other.load_state_dict(self.buffer.state_dict())
        if windows(self.model.trajectories(), self.length, self.strict, self.span):
            for _ in range(3):
                one, two = self.buffer.sample(20 * self.length), other.sample(20 * self.length)
                assert (one == two).all()
        self.buffer = other

    def empty(self):
        self.buffer.empty()
        self.model, self.written = NaiveRing(self.size), 0

    def check(self, draws):
        trajectories = self.model.trajectories()
        allowed = windows(trajectories, self.length, self.strict, self.span)
        if not len(self.buffer):
            return
        if not allowed:
            with pytest.raises(ContractError, match=f"stored trajectories has {self.length} steps"):
                self.buffer.sample(self.length)
            return
        seen = set(slices_of(self.buffer.sample(self.length * draws)))
        assert seen == set(allowed) if draws > 1000 else seen <= set(allowed)
        assert len(self.buffer.sampler.table_of(self.buffer.storage)) == len(trajectories)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_every_slice_is_one_that_may_be_drawn_and_each_is_drawn(data):
    scene = Scene(data)
    scene.extend()
    actions = [scene.extend, scene.extend, scene.extend, scene.touch, scene.resume, scene.empty]
    for _ in range(data.draw(st.integers(1, 15), "actions")):
        action = data.draw(st.sampled_from(actions), "action")
        if len(scene.buffer) or action == scene.extend:
            action()
        if data.draw(st.booleans(), "draw"):
            scene.check(50)
    scene.check(2000)


def chi_square(counts, probabilities, draws):
    return sum((counts.get(key, 0) - draws * p) ** 2 / (draws * p) for key, p in probabilities.items())


@pytest.mark.parametrize(
    ("strict", "span"),
    [(True, (0, 0)), (False, (0, 0)), (True, (3, 3)), (False, (2, 1)), (False, (0, 3))],
)
def test_slices_are_drawn_as_often_as_said(strict, span):
    done = [False] * 40
    for end in (2, 4, 14, 20, 33):  # trajectories of 3, 2, 10, 6, 13 and 6 steps, the last one without an end
        done[end] = True
    sampler = SliceSampler(slice_len=4, strict_length=strict, span=span)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(40), sampler=sampler, generator=torch.Generator().manual_seed(0)
    )
    buffer.extend(batch(done))
    ring = NaiveRing(40)
    ring.write([done])
    probabilities = windows(ring.trajectories(), 4, strict, span)
    counts: dict[tuple, int] = {}
    draws = 40_000
    for rows in slices_of(buffer.sample(4 * draws)):
        counts[rows] = counts.get(rows, 0) + 1
    check_probabilities(counts, probabilities, draws)


@pytest.mark.parametrize("lanes", [1, 3])
def test_a_ring_that_was_overwritten_is_drawn_from_as_often_as_said(lanes):
    torch.manual_seed(1)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(60, ndim=2),
        sampler=SliceSampler(num_slices=100, strict_length=False),
        generator=torch.Generator().manual_seed(0),
    )
    ring = NaiveRing(60)
    for start in range(0, 300, 5 * lanes):
        done = torch.rand(lanes, 5) < 0.2
        buffer.extend(batch(done, start))
        ring.write(done.tolist())
        buffer.sample(400)
    counts: dict[tuple, int] = {}
    for _ in range(400):
        for rows in slices_of(buffer.sample(400)):
            counts[rows] = counts.get(rows, 0) + 1
    check_probabilities(counts, windows(ring.trajectories(), 4, strict=False), 40_000)


def check_probabilities(counts, probabilities, draws):
    """The 99.9 % quantile of chi-square, after Wilson and Hilferty."""
    assert set(counts) == set(probabilities)
    freedom = len(probabilities) - 1
    bound = freedom * (1 - 2 / 9 / freedom + 3.09 * (2 / 9 / freedom) ** 0.5) ** 3
    assert chi_square(counts, probabilities, draws) < bound
