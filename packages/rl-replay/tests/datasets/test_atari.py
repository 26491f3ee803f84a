"""Checkpoints of Dopamine's replay memory, written as it writes them, against a loop over their frames."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
import torch

from rl.core.errors import ArgumentError, RLError
from rl.replay import SliceSampler
from rl.replay.datasets import AtariDQNExperienceReplay, load_dataset

PARTS = ("observation", "action", "reward", "terminal")


def save(folder, number, arrays, added=None):
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in zip(PARTS, arrays, strict=True):
        with gzip.open(folder / f"$store$_{name}_ckpt.{number}.gz", "wb") as file:
            np.save(file, array)
    if added is not None:
        with gzip.open(folder / f"add_count_ckpt.{number}.gz", "wb") as file:
            np.save(file, np.array(added))


def log(lengths, seed=0):
    """Episodes of such lengths, all of which but the last end; frames are never zero."""
    rng = np.random.default_rng(seed)
    total = sum(lengths)
    frames = rng.integers(1, 255, (total, 6, 5), dtype=np.uint8)
    action, reward = rng.integers(0, 4, total, dtype=np.int32), rng.normal(size=total).astype(np.float32)
    terminal = np.zeros(total, np.uint8)
    terminal[np.cumsum(lengths)[:-1] - 1] = 1
    return frames, action, reward, terminal


def expected(frames, lengths, stack=4):
    """Stacks of each step, and of what follows it."""
    at, before, after = 0, [], []
    for length in lengths:
        own = frames[at : at + length]
        padded = np.concatenate([np.zeros((stack - 1, *own.shape[1:]), np.uint8), own, own[-1:]])
        before += [padded[step : step + stack] for step in range(length)]
        after += [padded[step + 1 : step + 1 + stack] for step in range(length)]
        at += length
    return np.stack(before), np.stack(after)


@pytest.mark.parametrize("padding", [0, 3])
def test_frames_are_stacked_when_they_are_sampled(tmp_path, monkeypatch, padding):
    monkeypatch.setattr("rl.replay.datasets._atari._CHUNK", 4)
    lengths = (5, 1, 9, 3)
    plain = log(lengths)
    save(tmp_path / "logs", 0, pad(plain, lengths) if padding else plain)
    buffer = AtariDQNExperienceReplay(tmp_path / "logs", 200, root=tmp_path)
    assert len(buffer) == 18
    sample, (before, after) = buffer.sample(), expected(plain[0], lengths)
    index = sample["index"]
    assert set(sample.keys()) == {"observation", "action", "step", "episode", "next", "index"}
    np.testing.assert_array_equal(sample["observation"], before[index])
    np.testing.assert_array_equal(sample["next", "observation"], after[index])
    np.testing.assert_array_equal(sample["action"], plain[1][index])
    np.testing.assert_array_equal(sample["next", "reward"][:, 0], plain[2][index])
    rows = buffer[:]
    np.testing.assert_array_equal(rows["frame"], plain[0])
    assert rows["step"].tolist() == [step for length in lengths for step in range(length)]
    assert rows["episode"].tolist() == [number for number, length in enumerate(lengths) for _ in range(length)]
    assert rows["next", "terminated"][:, 0].tolist() == plain[3].astype(bool).tolist()
    assert rows["next", "truncated"][:, 0].nonzero().flatten().tolist() == [17]


def pad(arrays, lengths):
    """The same log with the three all-zero rows that Dopamine writes before each episode."""
    starts = np.cumsum((0, *lengths[:-1]))
    return [np.insert(array, np.repeat(starts, 3), 0, axis=0) for array in arrays]


def test_checkpoints_follow_each_other_and_slices_stay_within_episodes(tmp_path):
    torch.manual_seed(0)  # now and then all slices end with their episodes
    for number, lengths in ((0, (5, 7)), (1, (6, 4)), (10, (8,))):
        save(tmp_path, number, log(lengths, seed=number))
    buffer = load_dataset(
        f"atari-dqn:{tmp_path}", batch_size=40, frames=2, root=tmp_path / "rows", sampler=SliceSampler(slice_len=4)
    )
    assert buffer[:]["episode"].unique_consecutive(return_counts=True)[1].tolist() == [5, 7, 6, 4, 8]
    sample = buffer.sample().reshape(10, 4)
    assert sample["observation"].shape == (10, 4, 2, 6, 5)
    assert torch.equal(sample["next", "observation"][:, :-1], sample["observation"][:, 1:])
    own = buffer.data["frame"]
    last = sample[:, -1]
    going_on = ~buffer.data["next", "done"][last["index"], 0]
    assert going_on.any()
    assert torch.equal(last["next", "observation"][going_on, 1], own[last["index"][going_on] + 1])
    some = AtariDQNExperienceReplay(tmp_path, checkpoints=[10, 1], root=tmp_path / "rows")
    assert some[:]["episode"].unique_consecutive(return_counts=True)[1].tolist() == [8, 6, 4]


def test_a_memory_that_is_not_full_or_was_overwritten(tmp_path):
    arrays = log((4, 8))
    save(tmp_path / "a", 0, arrays, added=9)  # three rows were never written
    rows = AtariDQNExperienceReplay(tmp_path / "a", root=tmp_path)[:]
    assert len(rows) == 9
    assert rows["next", "truncated"][:, 0].nonzero().flatten().tolist() == [8]
    save(tmp_path / "b", 0, arrays, added=12 + 7)  # row 6 is the newest, row 7 the oldest
    rows = AtariDQNExperienceReplay(tmp_path / "b", root=tmp_path)[:]
    assert rows["next", "truncated"][:, 0].nonzero().flatten().tolist() == [6, 11]
    assert rows["episode"].tolist() == [0] * 4 + [1] * 3 + [2] * 5


def test_damaged_and_foreign_files_are_refused_and_leave_nothing(tmp_path):
    folder, rows = tmp_path / "logs", tmp_path / "rows"
    folder.mkdir()
    with pytest.raises(RLError, match="no folder of replay logs"):
        AtariDQNExperienceReplay(folder, root=rows)
    arrays = log((4, 4))
    save(folder, 0, arrays)
    with pytest.raises(RLError, match=r"lacks \$store\$_observation_ckpt\.3\.gz"):
        AtariDQNExperienceReplay(folder, checkpoints=[3], root=rows)
    file = folder / "$store$_observation_ckpt.0.gz"
    whole = file.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"no gzip file", whole[:40] + bytes(20) + whole[60:]):
        file.write_bytes(damaged)
        with pytest.raises(RLError, match=r"cannot read .*observation_ckpt\.0\.gz"):
            AtariDQNExperienceReplay(folder, root=rows)
    save(folder, 0, (arrays[0][:5], *arrays[1:]))
    with pytest.raises(RLError, match=r"expected uint8 \[8, height, width\]"):
        AtariDQNExperienceReplay(folder, root=rows)
    save(folder, 0, (arrays[0], arrays[1][:5], *arrays[2:]))
    with pytest.raises(RLError, match="it has 5 steps, the others 8"):
        AtariDQNExperienceReplay(folder, root=rows)
    with pytest.raises(ArgumentError, match="frames must be"):
        AtariDQNExperienceReplay(folder, frames=0, root=rows)
    assert not [path for path in rows.rglob("*") if path.is_file()]
