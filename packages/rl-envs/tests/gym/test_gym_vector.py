from __future__ import annotations

from typing import ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.core.errors import ArgumentError, SpecError
from rl.envs import GymWrapper, StepCounter, TransformedEnv
from rl.testing import check_env

patterns = st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=1, max_size=3)
MODES = {"list": None, **{mode.name: mode for mode in AutoresetMode}}


def make(counting_gym, lengths, mode, nested=False):
    makers = [lambda one=one: counting_gym(one, nested=nested) for one in lengths]
    if mode is None:
        return GymWrapper([one() for one in makers])
    return GymWrapper(SyncVectorEnv(makers, autoreset_mode=mode))


def by_hand(lengths, steps):
    """Roots, outcomes and (terminated, truncated) of one element: an episode's number and the step in it."""
    episode, count, rows = 0, 0, []
    for _ in range(steps):
        over = count + 1 >= lengths[episode % len(lengths)]
        rows.append(((episode, count), (episode, count + 1), over and episode % 2 == 0, over and episode % 2 == 1))
        episode, count = (episode + 1, 0) if over else (episode, count + 1)
    return rows


@pytest.mark.parametrize("nested", [False, True], ids=["box", "dict"])
@pytest.mark.parametrize("mode", MODES)
@given(lengths=patterns, steps=st.integers(1, 10))
@settings(max_examples=15, deadline=None)
def test_the_last_observation_is_under_next_whatever_the_mode(counting_gym, mode, nested, lengths, steps):
    env = make(counting_gym, lengths, MODES[mode], nested)
    data = env.rollout(steps, break_when_any_done=False)
    key = "place" if nested else "observation"
    for row, pattern in zip(data, lengths, strict=True):
        expected = by_hand(pattern, steps)
        assert [tuple(x) for x in row[key].tolist()] == [root for root, *_ in expected]
        assert [tuple(x) for x in row["next", key].tolist()] == [outcome for _, outcome, *_ in expected]
        assert row["next", "terminated"].flatten().tolist() == [terminated for *_, terminated, _ in expected]
        assert row["next", "truncated"].flatten().tolist() == [truncated for *_, truncated in expected]
        if nested:
            steps_seen = row["next", "inner", "step"].argmax(-1).tolist()
            assert steps_seen == [count for _, (_, count), *_ in expected]


@pytest.mark.parametrize("mode", MODES)
@given(lengths=patterns, limit=st.integers(1, 3))
@settings(max_examples=10, deadline=None)
def test_a_time_limit_of_ours_ends_episodes_in_every_mode(counting_gym, mode, lengths, limit):
    env = TransformedEnv(make(counting_gym, lengths, MODES[mode]), StepCounter(limit))
    data = env.rollout(8, break_when_any_done=False)
    for row, pattern in zip(data, lengths, strict=True):
        expected = by_hand([min(limit, one) for one in pattern], 8)
        assert [tuple(x) for x in row["observation"].tolist()] == [root for root, *_ in expected]
        assert [tuple(x) for x in row["next", "observation"].tolist()] == [outcome for _, outcome, *_ in expected]


@pytest.mark.parametrize("mode", MODES)
def test_elements_that_ended_can_be_held(counting_gym, mode):
    env = make(counting_gym, [[2], [4]], MODES[mode])
    data = env.rollout(9, break_when_all_done=True)
    assert data["next", "observation"][..., 1].tolist() == [[1, 2, 2, 2], [1, 2, 3, 4]]


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
def test_conformance(mode):
    check_env(lambda: GymWrapper(SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 3, autoreset_mode=mode)))


def test_a_wrapped_vector_environment_that_resets_too_late_is_refused():
    inner = SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2)
    with pytest.raises(ArgumentError, match=r"NEXT_STEP.*autoreset_mode="):
        GymWrapper(gym.wrappers.vector.RecordEpisodeStatistics(inner))


def test_an_unknown_mode_is_refused():
    env = SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2)
    env.metadata["autoreset_mode"] = "sometimes"
    with pytest.raises(ArgumentError, match="'sometimes'"):
        GymWrapper(env)
    del env.metadata["autoreset_mode"]
    with pytest.raises(ArgumentError, match="None"):
        GymWrapper(env)


class Fading(gym.vector.VectorEnv):
    """Resets in the same step, and keeps its last observations to itself."""

    metadata: ClassVar[dict] = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(self):
        self.num_envs = 2
        self.single_observation_space = gym.spaces.Box(-9, 9, (1,))
        self.single_action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros((2, 1), np.float32), {}

    def step(self, actions):
        over = np.array([True, False])
        return np.zeros((2, 1), np.float32), np.zeros(2), over, np.zeros(2, bool), {}


def test_lost_last_observations_are_an_error():
    env = GymWrapper(Fading())
    with pytest.raises(SpecError, match="final_obs"):
        env.rand_step()


def test_what_cannot_be_reset_on_request_says_so():
    env = GymWrapper(Fading())
    root = env.reset()
    with pytest.raises(SpecError, match="DISABLED"):
        env.reset(root.set("_reset", torch.tensor([[True], [False]])))


def test_what_vector_environments_do_not_do():
    env = SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2, autoreset_mode=AutoresetMode.DISABLED)
    with pytest.raises(ArgumentError, match="frame_skip"):
        GymWrapper(env, frame_skip=2)
    wrapped = GymWrapper(env)
    assert wrapped.state_dict() == {"restorable": False}
    with pytest.warns(UserWarning, match="not restored"):
        assert wrapped.load_state_dict({"restorable": False}) is False
