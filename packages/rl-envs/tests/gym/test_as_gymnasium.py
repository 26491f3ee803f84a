"""Our environments in Gymnasium."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

from rl.core.errors import ArgumentError
from rl.core.specs import Binary, Bounded, Composite, MultiCategorical, OneHot, Unbounded
from rl.envs import (
    AcrobotEnv,
    BanditEnv,
    CartPoleEnv,
    GridWorldEnv,
    GymEnv,
    LeafEnvBase,
    PendulumEnv,
    RewardScaling,
    StepCounter,
    TicTacToeEnv,
    as_gymnasium,
)


class Mixed(LeafEnvBase):
    """Spaces of every kind."""

    def __init__(self):
        super().__init__()
        self.observation_spec = Composite(
            choice=OneHot(3), bits=Binary(4), choices=MultiCategorical([2, 3]), number=Unbounded(()),
            inner=Composite(count=Bounded(0, 9, shape=(1,), dtype=torch.int64)),
        )  # fmt: skip
        self.action_spec = Composite(push=Bounded(-1, 1, shape=(2,)), key=OneHot(2))

    def _entries(self):
        spec = self.observation_spec
        entries = {key: spec[key].zero() for key in self.observation_keys}
        entries["choice"] = torch.tensor([False, True, False])
        return entries

    def _reset_leaves(self, mask):
        return self._entries()

    def _step_leaves(self, root):
        assert root["push"].shape == (2,)
        assert root["key"].sum() == 1
        return {**self._entries(), "reward": torch.zeros(1), "terminated": torch.zeros(1, dtype=torch.bool)}

    def _set_seed(self, seed):
        pass


@pytest.mark.parametrize(
    ("kind", "info_keys"),
    [
        (PendulumEnv, ["th", "thdot"]),
        (CartPoleEnv, ["state"]),
        (AcrobotEnv, ["state"]),
        (GridWorldEnv, []),
        (BanditEnv, ["means"]),
        (Mixed, []),
    ],
)
@pytest.mark.filterwarnings("ignore")  # Gymnasium's advice on bounds
def test_gymnasium_accepts_them(kind, info_keys):
    kind.register_gym("Checked-v0", info_keys=info_keys, max_episode_steps=20)
    try:
        check_env(gym.make("Checked-v0").unwrapped)
        vector = gym.make_vec("Checked-v0", num_envs=2, vectorization_mode="sync")
        vector.reset(seed=0)
        vector.step(vector.action_space.sample())
    finally:
        del gym.registry["Checked-v0"]


def test_it_gives_what_the_environment_gives():
    """There and back: a Gymnasium environment through ours is itself again."""
    raw = gym.make("CartPole-v1")
    round_trip = as_gymnasium(GymEnv("CartPole-v1"))
    assert round_trip.observation_space == raw.observation_space
    assert round_trip.action_space == raw.action_space
    one, two = raw.reset(seed=4)[0], round_trip.reset(seed=4)[0]
    over = False
    while not over:
        np.testing.assert_array_equal(one, two)
        action = raw.action_space.sample()
        one, reward, over, cut, _ = raw.step(action)
        two, same_reward, same_over, same_cut, _ = round_trip.step(action)
        assert (reward, over, cut) == (same_reward, same_over, same_cut)


def test_infos_transforms_and_arguments():
    BanditEnv.register_gym("Arms-v0", info_keys=["means"], transform=RewardScaling(0.0, 2.0), arms=3, std=0.0)
    try:
        env = gym.make("Arms-v0")
        _, info = env.reset(seed=0)
        assert info["means"].shape == (3,)
        assert env.action_space.n == 3
        assert env.step(1)[1] == pytest.approx(2 * float(info["means"][1]))
    finally:
        del gym.registry["Arms-v0"]


def test_a_time_limit_of_ours_is_a_truncation():
    env = as_gymnasium(PendulumEnv().append_transform(StepCounter(max_steps=3)), info_keys=["step_count"])
    env.reset(seed=0)
    assert [env.step(env.action_space.sample())[3] for _ in range(3)] == [False, False, True]


def test_what_gymnasium_cannot_hold():
    with pytest.raises(ArgumentError, match=r"batch \[2\]"):
        as_gymnasium(PendulumEnv([2]))
    with pytest.raises(ArgumentError, match="several rewards"):
        as_gymnasium(TicTacToeEnv())
    with pytest.raises(ArgumentError, match="no observation 'speed'"):
        as_gymnasium(PendulumEnv(), info_keys=["speed"])
    with pytest.raises(ArgumentError, match="no method render"):
        as_gymnasium(PendulumEnv(), render_mode="rgb_array")
