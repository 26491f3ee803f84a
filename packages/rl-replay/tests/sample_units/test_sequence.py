"""Windows around sampled rows, against rows that are walked through one by one."""

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import ArgumentError, CheckpointError, ContractError
from rl.replay import (
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SampleUnit,
    Sequence,
    SliceSampler,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
    Transition,
)


def rows(done, start=0):
    done = torch.as_tensor(done, dtype=torch.bool)
    x = torch.arange(start, start + done.numel()).view(done.shape)
    return TensorDict({"x": x, ("next", "done"): done.unsqueeze(-1)}, done.shape)


def streams(size, batches):
    """Stored steps of each environment in the order of time, as pairs of row and end flag."""
    stored, clock, found = {}, 0, {}
    for done in batches:
        for flags in done.T.tolist():
            for env, end in enumerate(flags):
                stored[clock % size] = (clock, env, end)
                clock += 1
    for (_, env, end), row in sorted((step, row) for row, step in stored.items()):
        found.setdefault(env, []).append((row, end))
    return list(found.values())


def expected(stream, unit):
    """Rows and validity of the window of each row of a stream."""
    found, begin = {}, 0
    pieces = []
    for at, (_, end) in enumerate(stream):
        if (end and unit.episode_boundary != "include_reset" and unit.done_key is not None) or at == len(stream) - 1:
            pieces.append([row for row, _ in stream[begin : at + 1]])
            begin = at + 1
    for piece in pieces:
        for at, row in enumerate(piece):
            place = at
            if unit.episode_boundary == "stop":
                while place > 0 and place + unit.dilation * (unit.length + unit.bootstrap - 1) > len(piece) - 1:
                    place -= 1
            window = [
                place + unit.dilation * (k - unit.burn_in) for k in range(unit.burn_in + unit.length + unit.bootstrap)
            ]
            found[row] = (
                [piece[min(max(step, 0), len(piece) - 1)] for step in window],
                [0 <= step < len(piece) for step in window],
            )
    return found


@pytest.mark.parametrize("boundary", ["pad", "stop", "include_reset"])
@pytest.mark.parametrize("seed", range(8))
def test_windows_are_those_of_a_loop(boundary, seed):
    random = torch.Generator().manual_seed(seed)

    def pick(low, high):
        return int(torch.randint(low, high + 1, (), generator=random))

    lanes, steps, size = pick(0, 3), pick(1, 3), 36
    unit = Sequence(
        pick(1, 4),
        boundary,
        burn_in=pick(0, 2),
        bootstrap=pick(0, 2),
        dilation=pick(1, 3),
        **({} if pick(0, 3) else {"done_key": None}),
    )
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(size, ndim=2 if lanes else 1),
        sampler=SamplerWithoutReplacement(shuffle=False),
        sample_unit=unit,
    )
    batches = []
    for _ in range(pick(1, 30)):
        done = torch.rand(max(lanes, 1), steps, generator=random) < 0.2
        buffer.extend(rows(done) if lanes else rows(done)[0])
        batches.append(done)
    wanted = {}
    for stream in streams(size, batches):
        wanted |= expected(stream, unit)
    _, info = buffer.sample(len(buffer), return_info=True)
    window = unit.burn_in + unit.length + unit.bootstrap
    assert info["index"].view(-1, window).tolist() == [wanted[row][0] for row in range(len(buffer))]
    assert info["validity_mask"].view(-1, window).tolist() == [wanted[row][1] for row in range(len(buffer))]
    assert info["anchor_index"].view(-1, window).tolist() == [[row] * window for row in range(len(buffer))]
    assert info["sequence_id"].view(-1, window).tolist() == [[row] * window for row in range(len(buffer))]
    assert info["step_in_sequence"].view(-1, window).tolist() == [list(range(window))] * len(buffer)
    learning = [unit.burn_in <= k < unit.burn_in + unit.length for k in range(window)]
    assert info["learning_mask"].view(-1, window).tolist() == [learning] * len(buffer)


def test_every_sampler_of_rows_selects_anchors_and_samples_hold_the_info():
    for sampler in (RandomSampler(), SamplerWithoutReplacement(), PrioritizedSampler(20, 1.0, 1.0, backend="torch")):
        buffer = TensorDictReplayBuffer(
            storage=ListStorage(20), sampler=sampler, sample_unit=Sequence(3, burn_in=1), batch_size=5
        )
        buffer.extend(rows(torch.arange(20) % 7 == 6))
        sample = buffer.sample()
        assert sample.batch_size == (20,)
        assert (sample["index"] == sample["x"]).all()
        assert (sample["anchor_index"] == sample["x"])[sample["step_in_sequence"] == 1].all()
        for key in Sequence.keys:
            assert sample[key].shape == (20,)
        assert (sample["x"] // 7 == sample["anchor_index"] // 7).all()


def test_weights_and_priorities_are_those_of_the_anchors():
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=1.0,
        beta=1.0,
        eps=0.0,
        backend="torch",
        storage=LazyTensorStorage(12),
        sample_unit=Sequence(2, burn_in=1, bootstrap=1),
        batch_size=40,
    )
    buffer.extend(rows(torch.arange(12) % 6 == 5))
    buffer.update_priority(torch.arange(12), torch.tensor([0.0, 0, 2, 0, 0, 8, 0, 0, 0, 0, 0, 0]))
    sample = buffer.sample()
    assert set(sample["anchor_index"].tolist()) == {2, 5}
    assert (sample["priority_weight"] == torch.where(sample["anchor_index"] == 2, 1.0, 0.25)).all()
    sample["td_error"] = torch.where(sample["learning_mask"] & sample["validity_mask"], -sample["x"], 99).unsqueeze(-1)
    buffer.update_tensordict_priority(sample)
    raw = buffer.sampler.state_dict()["raw"]
    assert raw.tolist() == [0, 0, 3, 0, 0, 5, 0, 0, 0, 0, 0, 0]  # 2 learns from rows 2 and 3, 5 from itself
    with pytest.raises(ContractError, match="has no 'anchor_index'; pass a sample"):
        buffer.update_tensordict_priority(sample.exclude("anchor_index"))


def test_flags_that_end_trajectories():
    data = rows([False] * 6)
    data["episode"] = torch.tensor([0, 0, 0, 1, 1, 1])
    data["over"] = torch.tensor([False, True, False, False, False, False])

    def windows(**arguments):
        buffer = ReplayBuffer(
            storage=LazyTensorStorage(6),
            sampler=SamplerWithoutReplacement(shuffle=False),
            sample_unit=Sequence(2, **arguments),
        )
        buffer.extend(data)
        return buffer.sample(6)["x"].view(6, 2)[:, 1].tolist()

    assert windows() == [1, 2, 2, 4, 5, 5]
    assert windows(done_key="over") == [1, 1, 2, 4, 5, 5]
    assert windows(done_key=None) == windows(episode_boundary="include_reset") == [1, 2, 3, 4, 5, 5]


def test_tensors_without_flags():
    buffer = ReplayBuffer(storage=LazyTensorStorage(8), sample_unit=Sequence(3, done_key=None), batch_size=10)
    for start in range(0, 21, 3):
        buffer.extend(torch.arange(start, start + 3))
    windows = buffer.sample().view(10, 3)
    assert (windows.diff() == (windows[:, 1:] < 21 - 1).long()).any()
    assert (windows.diff() <= 1).all()
    with pytest.raises(ContractError, match="rows of type Tensor have no entries"):
        ReplayBuffer(storage=LazyTensorStorage(8), sample_unit=Sequence(3)).extend(torch.arange(3))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_resumed_buffer_continues(prefetch, tmp_path):
    def make(length=3):
        return ReplayBuffer(
            storage=LazyTensorStorage(20),
            sample_unit=Sequence(length),
            batch_size=6,
            prefetch=prefetch,
            generator=torch.Generator().manual_seed(0),
        )

    one, two = make(), make()
    for start in range(0, 35, 7):
        one.extend(rows(torch.arange(start, start + 7) % 5 == 4, start))
        one.sample()
    one.dumps(tmp_path)
    two.loads(tmp_path)
    for start in range(35, 70, 7):
        for _ in range(3):
            assert (one.sample() == two.sample()).all()
        for buffer in (one, two):
            buffer.extend(rows(torch.arange(start, start + 7) % 5 == 4, start))
    with pytest.raises(CheckpointError, match=r"has sample_unit=Sequence\(length=4.*the state .*length=3"):
        make(4).loads(tmp_path)
    one.empty()
    one.extend(rows([False] * 4))
    assert one.sample(3).batch_size == (9,)


def test_units_of_ones_own_and_the_plain_one():
    class Twice(SampleUnit):
        def expand(self, index, info, storage):
            return index.repeat_interleave(2), info

    def make(unit):
        return ReplayBuffer(
            storage=LazyTensorStorage(9), sample_unit=unit, batch_size=4, generator=torch.Generator().manual_seed(0)
        )

    buffers = [make(unit) for unit in (None, Transition(), Twice())]
    for buffer in buffers:
        buffer.extend(torch.arange(9))
    plain, same, twice = (buffer.sample() for buffer in buffers)
    assert plain.tolist() == same.tolist() == twice[::2].tolist() == twice[1::2].tolist()
    again = make(Twice())
    again.load_state_dict(buffers[2].state_dict())
    assert again.sample().equal(buffers[2].sample())
    assert "Sequence(length=2" in repr(make(Sequence(2)))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"length": 0}, "length must be at least 1, got 0"),
        ({"length": 2, "burn_in": -1}, "burn_in must be at least 0, got -1"),
        ({"length": 2, "bootstrap": 1.5}, "bootstrap must be"),
        ({"length": 2, "dilation": True}, "dilation must be"),
        ({"length": 2, "episode_boundary": "wrap"}, "'pad', 'stop' or 'include_reset', got 'wrap'"),
    ],
)
def test_arguments_out_of_range(arguments, text):
    with pytest.raises(ArgumentError, match=text):
        Sequence(**arguments)


def test_refusals():
    with pytest.raises(ArgumentError, match="a SliceSampler selects sequences itself"):
        ReplayBuffer(sampler=SliceSampler(slice_len=2), sample_unit=Sequence(2))
    with pytest.raises(ArgumentError, match="sample_unit is Transition"):
        ReplayBuffer(sample_unit=3)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(9), sample_unit=Sequence(2))
    with pytest.raises(ContractError, match="writes 'sequence_id' into its samples"):
        buffer.extend(rows([False] * 3).set("sequence_id", torch.zeros(3)))
    with pytest.raises(ContractError, match=r"Sequence reads where trajectories end under .*the rows have neither"):
        buffer.extend(rows([False] * 3).exclude("next"))
    with pytest.raises(ContractError, match="empty"):
        buffer.sample(2)
    assert len(buffer) == 0
