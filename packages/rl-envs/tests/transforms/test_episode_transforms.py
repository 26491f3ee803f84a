"""Transforms of the course of an episode against naive loops over counting environments."""

from __future__ import annotations

import pytest
import torch

from rl.envs import (
    CatFrames,
    Compose,
    ConditionalSkip,
    FrameSkipTransform,
    GridWorldEnv,
    NoopResetEnv,
    PendulumEnv,
    PolicyVersion,
    RandomTruncationTransform,
    StepCounter,
    TerminateTransform,
    TimeMaxPool,
    Timer,
    TrajCounter,
    TransformedEnv,
)
from rl.testing import CountingEnv, check_transform


def upside_down(entries):
    return entries["th"].unsqueeze(-1).abs() > 3.0


ALL = {
    "cat-frames": lambda: CatFrames(3, -1, ["observation"]),
    "cat-frames-constant": lambda: CatFrames(3, -1, ["observation"], padding="constant", padding_value=-1),
    "frame-skip": lambda: FrameSkipTransform(3),
    "random-truncation": lambda: Compose(StepCounter(), RandomTruncationTransform(3, 6)),
    "terminate": lambda: TerminateTransform(upside_down),
    "time-max-pool": lambda: TimeMaxPool(["observation"], T=2),
    "traj-counter": TrajCounter,
    "policy-version": PolicyVersion,
}


@pytest.mark.parametrize("batch", [(), (3,)], ids=str)
@pytest.mark.parametrize("name", ALL)
def test_it_keeps_the_rules_in_an_environment(name, batch):
    if name == "traj-counter":
        pytest.skip("numbers of episodes go on over resets on purpose")
    check_transform(
        ALL[name](),
        wrap=lambda t: TransformedEnv(PendulumEnv(batch, seed=0), Compose(t, StepCounter(9, step_count_key="clock"))),
    )


def test_frames_are_the_last_ones_of_the_episode_with_partial_resets():
    env = TransformedEnv(CountingEnv([3, 5], batch_size=(2,)), CatFrames(3, -1, ["observation"], ["frames"]))
    data = env.rollout(12, break_when_any_done=False)
    for row in data:
        for step in row:
            count = int(step["observation"])
            assert step["frames"].tolist() == [max(count - back, 0) for back in (2, 1, 0)]
            assert step["next", "frames"].tolist() == [max(count + 1 - back, 0) for back in (2, 1, 0)]


def test_skipped_frames_add_up_rewards_and_stop_at_the_end():
    env = TransformedEnv(CountingEnv([4, 7], batch_size=(2,)), FrameSkipTransform(3))
    root = env.reset()
    totals = []
    for _ in range(3):
        stepped = env.step(root.set("action", torch.ones(2, dtype=torch.int64)))
        totals.append(stepped["next", "reward"].flatten().tolist())
        root = env.maybe_reset(env.step_mdp(stepped))
    assert totals == [[3, 3], [1, 3], [3, 1]]


def test_noop_resets_begin_later_and_survive_ends():
    env = TransformedEnv(CountingEnv(9), NoopResetEnv(3, random=False))
    assert env.reset()["observation"].item() == 3
    random = TransformedEnv(CountingEnv([40, 40], batch_size=(2,)), NoopResetEnv(6))
    random.set_seed(0)
    counts = {int(count) for _ in range(30) for count in random.reset()["observation"]}
    assert counts == {1, 2, 3, 4, 5, 6}


def test_episodes_after_the_first_are_truncated_between_the_two_horizons():
    env = TransformedEnv(PendulumEnv([64], seed=0), Compose(StepCounter(), RandomTruncationTransform(4, 8, prob=1.0)))
    env.set_seed(1)
    data = env.rollout(60, break_when_any_done=False)
    first, later = set(), set()
    for row in data:
        lengths = row["next", "step_count"][row["next", "truncated"]].tolist()
        first.add(lengths[0])
        later.update(lengths[1:])
    assert first == set(range(1, 9))
    assert later == set(range(4, 9))


def test_a_condition_terminates_or_skips():
    env = TransformedEnv(CountingEnv(9), TerminateTransform(lambda entries: entries["observation"] >= 4))
    data = env.rollout(20)
    assert len(data) == 4
    assert data["next", "terminated"].flatten().tolist() == [False] * 3 + [True]
    skipping = TransformedEnv(CountingEnv(9), ConditionalSkip(lambda td: td["observation"] == 2))
    data = skipping.rollout(5)
    assert data["next", "observation"].flatten().tolist() == [1, 2, 2, 2, 2]


def test_episodes_are_numbered_and_timed():
    env = TransformedEnv(CountingEnv([2, 3], batch_size=(2,)), Compose(TrajCounter(), Timer()))
    data = env.rollout(6, break_when_any_done=False)
    numbers = data["traj_count"][..., 0].tolist()
    assert numbers[0][0] != numbers[1][0]
    assert len({(row[i]) for row in numbers for i in range(6)}) == 5
    assert data["next", "time_step"].min() > 0


def test_the_version_is_written_and_incremented():
    version = PolicyVersion()
    env = TransformedEnv(GridWorldEnv(seed=0), version)
    assert env.rollout(2)["policy_version"].flatten().tolist() == [0, 0]
    version.increment_version()
    assert env.rollout(2)["policy_version"].flatten().tolist() == [1, 1]
