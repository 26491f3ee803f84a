"""Batches of whole trajectories against the episodes that were laid down."""

import pytest
import torch

from rl.collectors import Collector
from rl.core.errors import ArgumentError

ROWS = [[3, 1], [5], [2, 4]]


def expected(count):
    """Element, episode and length of the first `count` trajectories, in the order of their ends."""
    ends = []
    for i, row in enumerate(ROWS):
        time = 0
        for episode in range(count):
            time += row[episode % len(row)]
            ends.append((time, i, episode, row[episode % len(row)]))
    return [end[1:] for end in sorted(ends)[:count]]


def found(batches, form):
    out = []
    for batch in batches:
        if form == "padded":
            mask = batch["collector", "mask"]
            assert (batch["observation"][~mask] == 0).all()
            rows = [row[keep] for row, keep in zip(batch, mask, strict=True)]
        else:
            last = batch["next", "done"].flatten().nonzero().flatten().tolist()
            rows = [batch[0 if k == 0 else last[k - 1] + 1 : end + 1] for k, end in enumerate(last)]
            assert sum(map(len, rows)) == len(batch)
        for row in rows:
            i, episode = row["observation"][0, :2].int().tolist()
            assert row["observation"][:, :3].tolist() == [[i, episode, t] for t in range(len(row))]
            assert row["next", "done"].flatten().tolist() == [False] * (len(row) - 1) + [True]
            assert row["collector", "traj_ids"].unique().numel() == 1
            out.append((i, episode, len(row)))
    return out


@pytest.mark.parametrize("form", ["padded", "cat"])
@pytest.mark.parametrize("frames", [3, 12, 60])
@pytest.mark.parametrize("count", [1, 4])
def test_each_batch_has_whole_trajectories_in_the_order_of_their_ends(counting_env, form, frames, count):
    settings = {"frames_per_batch": frames, "trajs_per_batch": count, "traj_format": form}
    collector = Collector(counting_env(ROWS, [3]), **settings)
    batches = [collector.collect() for _ in range(5)]
    assert found(batches, form) == expected(5 * count)
    assert batches[0].ndim == (2 if form == "padded" else 1)


def test_parts_and_waiting_trajectories_are_continued(counting_env, make_policy):
    def make():
        settings = {"frames_per_batch": 12, "trajs_per_batch": 2, "traj_format": "cat"}
        return Collector(counting_env(ROWS, [3]), make_policy(), **settings)

    one, other = make(), make()
    batches = [one.collect()]
    other.load_state_dict(one.state_dict())
    batches += [other.collect() for _ in range(4)]
    assert found(batches, "cat") == expected(10)
    other.reset()  # the running ones are dropped; what has ended is not
    after = found([other.collect() for _ in range(4)], "cat")
    assert len({*after}) == 8


def test_iteration_ends_with_the_last_frames(counting_env):
    settings = {"trajs_per_batch": 4, "traj_format": "cat"}
    batches = list(Collector(counting_env(ROWS, [3]), frames_per_batch=6, total_frames=18, **settings))
    assert [len(found([batch], "cat")) for batch in batches] == [4]
    assert list(Collector(counting_env([[50]]), frames_per_batch=6, total_frames=18, **settings)) == []


def test_settings_that_exclude_each_other(counting_env):
    for settings, message in (
        ({"set_truncated": True}, "ends no trajectory"),
        ({"split_trajs": True}, "split already"),
        ({"return_same_td": True}, "shape of a batch varies"),
        ({"traj_format": "list"}, "'padded' or 'cat'"),
        ({"trajs_per_batch": 0}, "at least 1"),
    ):
        with pytest.raises(ArgumentError, match=message):
            Collector(counting_env, frames_per_batch=2, **{"trajs_per_batch": 2, **settings})


def test_storing_device(counting_env):
    collector = Collector(counting_env, frames_per_batch=9, trajs_per_batch=2, traj_format="cat", storing_device="meta")
    batch = collector.collect()
    assert (batch.shape, batch["action"].device) == ((6,), torch.device("meta"))
