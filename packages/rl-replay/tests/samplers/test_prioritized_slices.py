"""Slices by priority, against rows that are walked through one by one."""

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import ArgumentError, CheckpointError, ContractError
from rl.replay import LazyTensorStorage, PrioritizedSliceSampler, ReplayBuffer, TensorDictReplayBuffer

ALPHA, EPS = 0.7, 1e-3


class Model:
    """Rows by place: lane, order of writing, end flag, priority."""

    def __init__(self, size, lanes):
        self.size, self.lanes, self.clock, self.largest = size, lanes, 0, 1.0
        self.rows = {}

    def write(self, done):
        lanes, steps = done.shape
        for step in range(steps):
            for lane in range(lanes):
                order = self.clock + step * lanes
                self.rows[(order + lane) % self.size] = [
                    lane,
                    order,
                    bool(done[lane, step]),
                    self.largest,
                ]
        self.clock += lanes * steps

    def begins(self, length, strict, after):
        """Slices by their first row."""
        found = {}
        for lane in range(self.lanes):
            places = sorted((row[1], place) for place, row in self.rows.items() if row[0] == lane)
            trajectory = []
            for _, place in places:
                trajectory.append(place)
                if self.rows[place][2] or place == places[-1][1]:
                    full = min(length, len(trajectory))
                    if full == length or not strict:
                        for begin in range(len(trajectory) - full + min(after, full - 1) + 1):
                            found[trajectory[begin]] = trajectory[begin : begin + full]
                    trajectory = []
        return found


def make(size, lanes, length, strict, after, **options):
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(size, ndim=2 if lanes else 1),
        sampler=PrioritizedSliceSampler(
            size,
            ALPHA,
            0.5,
            EPS,
            torch.float64,
            slice_len=length,
            strict_length=strict,
            span=(False, after),
            **options,
        ),
        batch_size=40 * length,
        generator=torch.Generator().manual_seed(0),
    )


def check(buffer, model, length, strict, after):
    begins = model.begins(length, strict, after)
    if not begins:
        with pytest.raises(ContractError, match="stored trajectories has"):
            buffer.sample()
        return
    sample = buffer.sample()
    expected = torch.zeros(len(model.rows), dtype=torch.float64)
    for row in begins:
        expected[row] = (model.rows[row][3] + EPS) ** ALPHA
    found = buffer.sampler._priorities._tree.get(torch.arange(len(model.rows)))
    assert found == pytest.approx(expected)
    cut = sample["is_init"].flatten().nonzero().flatten().tolist()[1:]
    for rows, weight in zip(
        sample["index"].tensor_split(cut), sample["priority_weight"].tensor_split(cut), strict=True
    ):
        assert begins[int(rows[0])] == rows.tolist()
        wanted = (expected[rows[0]] / expected[expected > 0].min()).item() ** -0.5
        assert weight.tolist() == pytest.approx([wanted] * len(rows))


@pytest.mark.parametrize("backend", ["torch", "auto"])
@pytest.mark.parametrize("seed", range(12))
def test_begins_have_the_priority_of_their_row_and_all_others_none(seed, backend):
    random = torch.Generator().manual_seed(seed)

    def pick(*choices):
        return choices[int(torch.randint(len(choices), (), generator=random))]

    lanes, size, length = pick(0, 0, 1, 3), pick(12, 24, 36), pick(1, 2, 3, 5)
    strict, after = pick(True, False), pick(0, 0, length // 2, length - 1)
    arguments = (size, lanes, length, strict, after)
    buffer, model = make(*arguments, backend=backend), Model(size, max(lanes, 1))
    steps = pick(1, 2, 4)
    for _ in range(60):
        what = pick("extend", "extend", "extend", "update", "update", "touch", "resume")
        if what == "extend" or not model.rows:
            done = torch.rand(max(lanes, 1), steps if lanes else pick(1, 2, 5, size), generator=random) < 0.2
            data = TensorDict({"x": done.long(), ("next", "done"): done.unsqueeze(-1)}, done.shape)
            buffer.extend(data if lanes else data[0])
            model.write(done)
        elif what == "update":
            rows = torch.randint(len(model.rows), (7,), generator=random)
            errors = torch.randn(7, dtype=torch.float64, generator=random)
            buffer.update_priority(rows, errors)
            for row, error in zip(rows.tolist(), errors.abs().tolist(), strict=True):
                model.rows[row][3] = error
            model.largest = max(model.largest, errors.abs().max().item())
        elif what == "touch" and not lanes:  # past the buffer
            row = int(torch.randint(len(model.rows), (), generator=random))
            stored = buffer[[row]]
            stored["next", "done"] = ~stored["next", "done"]
            buffer.storage.set(torch.tensor([row]), stored)
            model.rows[row][2] = not model.rows[row][2]
        elif what == "resume":
            other = make(*arguments, backend=backend)
            other.load_state_dict(buffer.state_dict())
            buffer = other
        if pick(True, False):
            check(buffer, model, length, strict, after)
    check(buffer, model, length, strict, after)


def test_frequencies_are_the_priorities():
    buffer = make(30, 0, 4, strict=True, after=0)
    done = torch.arange(30) % 10 == 9
    buffer.extend(TensorDict({"x": torch.arange(30), ("next", "done"): done}, [30]))
    raw = torch.rand(30, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    buffer.update_priority(torch.arange(30), raw)
    rows, count = buffer.sample(4 * 20_000)["index"].view(-1, 4)[:, 0].unique(return_counts=True)
    p = (raw + EPS) ** ALPHA * (torch.arange(30) % 10 < 7)
    p /= p.sum()
    assert rows.tolist() == p.nonzero().flatten().tolist()
    statistic = ((count - 20_000 * p[rows]) ** 2 / (20_000 * p[rows])).sum()
    assert statistic < 45.3  # the 99.9 % quantile of chi-square with 20 degrees of freedom


def test_several_lengths_and_exponents_are_served():
    sampler = PrioritizedSliceSampler(40, 1.0, 0.0, 0.0, num_slices=2, backend="torch")
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(40), sampler=sampler)
    x = torch.arange(20)
    buffer.extend(TensorDict({"x": x, "episode": x // 5, "td_error": (x % 5 == 2) * 4.0}, [20]))
    assert set(buffer.sample(6)["x"].view(2, 3)[:, 0].remainder(5).tolist()) == {2}
    with pytest.raises(ContractError, match="all priorities are zero"):
        buffer.sample(8)
    buffer.update_priority(torch.arange(20), (x % 5 < 2) * 1.0)
    sampler.alpha = 2.0
    for length in (4, 2, 4, 3):
        firsts = {buffer.sample(2 * length)["x"][0].item() % 5 for _ in range(60)}
        assert firsts == {0, 1}


def test_padded_slices_have_a_weight_for_each_step():
    sampler = PrioritizedSliceSampler(20, 1.0, 1.0, slice_len=4, strict_length=False, pad_output=True, backend="torch")
    buffer = ReplayBuffer(storage=LazyTensorStorage(20), sampler=sampler, batch_size=40)
    x = torch.arange(9)
    buffer.extend(TensorDict({"x": x, "episode": torch.tensor([0, 0, 1, 1, 1, 1, 1, 2, 2])}, [9]))
    buffer.update_priority(torch.tensor([0, 2]), torch.tensor([2.0, 4.0]))
    sample, info = buffer.sample(return_info=True)
    assert sample["x"].shape == info["priority_weight"].shape == (10, 4)
    expected = {0: 0.5, 2: 0.25, 3: 1.0, 7: 1.0}
    for rows, weights in zip(sample["x"].tolist(), info["priority_weight"].tolist(), strict=True):
        assert weights == pytest.approx([expected[rows[0]]] * 4)


def test_refusals():
    with pytest.raises(ArgumentError, match=r"use span=\(False, 2\) for steps after it"):
        PrioritizedSliceSampler(9, 1.0, 1.0, slice_len=3, span=(1, 2))
    with pytest.raises(ArgumentError, match="none of its steps lies before"):
        PrioritizedSliceSampler(9, 1.0, 1.0, slice_len=3, span=True)
    with pytest.raises(ArgumentError, match="exactly one of num_slices and slice_len"):
        PrioritizedSliceSampler(9, 1.0, 1.0)
    small = PrioritizedSliceSampler(9, 1.0, 1.0, slice_len=3, backend="torch")
    with pytest.raises(ArgumentError, match=r"max_size=20.*max_capacity=9"):
        ReplayBuffer(storage=LazyTensorStorage(20), sampler=small)
    buffer = make(12, 0, 2, strict=True, after=0)
    buffer.extend(TensorDict({"x": torch.arange(6), "episode": torch.zeros(6)}, [6]))
    buffer.sample()
    before = buffer.state_dict()
    with pytest.raises(IndexError, match="outside"):
        buffer.update_priority(torch.tensor([7]), torch.tensor([1.0]))
    with pytest.raises(ArgumentError):
        buffer.update_priority(torch.tensor([1]), torch.tensor([torch.nan]))
    after = buffer.state_dict()
    assert torch.equal(before["sampler"]["priorities"]["priority"], after["sampler"]["priorities"]["priority"])
    with pytest.raises(CheckpointError, match="lacks trajectories"):
        buffer.sampler.load_state_dict({})
    assert "PrioritizedSliceSampler(slice_len=2" in repr(buffer)
