"""Simulators with Gymnasium's interface and something more: vectors of rewards, costs, success."""

from __future__ import annotations

import sys
import types

import gymnasium
import numpy as np
import pytest
import torch

from rl.core.errors import MissingExtraError, SpecError, UnknownComponentError
from rl.envs import (
    LineariseRewards,
    MetaWorldEnv,
    MOGymEnv,
    MOGymWrapper,
    SafetyGymnasiumEnv,
    SafetyGymnasiumWrapper,
    SerialEnv,
    TransformedEnv,
)
from rl.testing import check_env

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


@pytest.mark.parametrize("name", ["mo-mountaincar-v0", "mo-halfcheetah-v5"])
def test_mo_gymnasium_steps_are_those_of_the_library(name):
    mo_gymnasium = pytest.importorskip("mo_gymnasium")
    env, raw = MOGymEnv(name, categorical_action_encoding=True), mo_gymnasium.make(name)
    env.set_seed(3)
    seen, _ = raw.reset(seed=3)
    root = env.reset()
    for _ in range(1000):
        root = env.rand_action(root)
        np.testing.assert_array_equal(root["observation"].numpy(), seen)
        seen, reward, terminated, truncated, _ = raw.step(root["action"].numpy())
        stepped, root = env.step_and_maybe_reset(root)
        np.testing.assert_array_equal(stepped["next", "observation"].numpy(), seen)
        np.testing.assert_array_equal(stepped["next", "reward"].numpy(), np.float32(reward))
        assert stepped["next", "terminated"].item() == terminated
        assert stepped["next", "truncated"].item() == truncated
        if terminated or truncated:
            seen, _ = raw.reset()


def test_mo_gymnasium_batches_and_conformance():
    pytest.importorskip("mo_gymnasium")
    check_env(lambda: MOGymEnv("mo-mountaincar-v0", num_envs=2))
    serial = SerialEnv(2, lambda: MOGymEnv("mo-mountaincar-v0", frame_skip=2))
    assert serial.rollout(3)["next", "reward"].shape == (2, 3, 3)
    collectors = pytest.importorskip("rl.collectors")
    batch = collectors.Collector(MOGymEnv("mo-mountaincar-v0", num_envs=2), frames_per_batch=500).collect()
    assert batch["next", "truncated"].sum() == 2
    env = TransformedEnv(
        MOGymEnv("mo-mountaincar-v0"), LineariseRewards(in_keys=["reward"], weights=torch.tensor([1.0, 0.0, 0.5]))
    )
    assert env.rollout(3)["next", "reward"].shape[-1] == 1
    with pytest.raises(UnknownComponentError, match="Did you mean 'mo-mountaincar-v0'"):
        MOGymEnv("mo-mountaincr-v0")
    with pytest.raises(SpecError, match="which have a reward_space"):
        MOGymWrapper(gymnasium.make("CartPole-v1"))


class Costly(gymnasium.Env):
    """The interface of Safety-Gymnasium: steps have six values. The cost is the number of the step, up to 4."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.np_random.random(2, np.float32), {}

    def step(self, action):
        self.count += 1
        reward = self.np_random.random()
        return self.np_random.random(2, np.float32), reward, float(self.count), self.count == 4, False, {}


def test_a_thousand_steps_are_those_of_the_interface_with_costs():
    env, raw = SafetyGymnasiumWrapper(Costly()), Costly()
    env.set_seed(2)
    seen, _ = raw.reset(seed=2)
    root, paid = env.reset(), 0.0
    for _ in range(1000):
        np.testing.assert_array_equal(root["observation"].numpy(), seen)
        assert root["cost"].item() == paid
        stepped, root = env.step_and_maybe_reset(env.rand_action(root))
        seen, reward, paid, terminated, truncated, _ = raw.step(stepped["action"].numpy())
        then = stepped["next"]
        np.testing.assert_array_equal(then["observation"].numpy(), seen)
        assert (then["reward"].item(), then["cost"].item()) == (np.float32(reward), paid)
        assert (then["terminated"].item(), then["truncated"].item()) == (terminated, truncated)
        if terminated:
            (seen, _), paid = raw.reset(), 0.0


def test_costs_are_observations():
    env = SafetyGymnasiumWrapper([Costly(), Costly()])
    data = env.rollout(6, break_when_any_done=False)
    assert data["next", "cost"][0].flatten().tolist() == [1, 2, 3, 4, 1, 2]
    assert data["cost"][0].flatten().tolist() == [0, 1, 2, 3, 0, 1]
    check_env(lambda: SafetyGymnasiumWrapper([Costly(), Costly()]))
    collectors = pytest.importorskip("rl.collectors")
    batch = collectors.Collector(SafetyGymnasiumWrapper([Costly(), Costly()]), frames_per_batch=40).collect()
    assert batch["next", "cost"].max() == 4


def test_safety_gymnasium_makes_environments_by_id(monkeypatch):
    library = types.ModuleType("safety_gymnasium")
    library.registry = {"SafetyPointGoal1-v0": None}
    library.make = lambda env_name, **_: Costly()
    monkeypatch.setitem(sys.modules, "safety_gymnasium", library)
    monkeypatch.setattr("rl.envs._libraries.version", lambda _: "1.0.0")
    assert SafetyGymnasiumEnv("SafetyPointGoal1-v0", num_envs=2).rollout(2)["cost"].shape == (2, 2, 1)
    with pytest.raises(UnknownComponentError, match="Did you mean 'SafetyPointGoal1-v0'"):
        SafetyGymnasiumEnv("SafetyPointGoal-v0")


def test_a_thousand_steps_are_those_of_meta_world():
    pytest.importorskip("metaworld")
    env = MetaWorldEnv("reach-v3", env_kwargs={"seed": 1})  # of the goals
    raw = gymnasium.make("Meta-World/MT1", env_name="reach-v3", disable_env_checker=True, seed=1)
    env.set_seed(0)
    raw.unwrapped.seed(0)  # its reset ignores one
    seen, _ = raw.reset()
    root, ends = env.reset(), 0
    for _ in range(1000):
        np.testing.assert_array_equal(root["observation"].numpy(), seen)
        root = env.rand_action(root)
        seen, reward, terminated, truncated, info = raw.step(root["action"].numpy())
        stepped, root = env.step_and_maybe_reset(root)
        np.testing.assert_array_equal(stepped["next", "observation"].numpy(), seen)
        assert stepped["next", "reward"].item() == np.float32(reward)
        assert stepped["next", "success"].item() == info["success"]
        assert stepped["next", "terminated"].item() == terminated
        assert stepped["next", "truncated"].item() == truncated
        if terminated or truncated:
            seen, _ = raw.reset()
            ends += 1
    assert ends >= 2
    with pytest.raises(UnknownComponentError, match="Did you mean 'reach-v3'"):
        MetaWorldEnv("reach-v2")


def test_goals_of_meta_world_follow_the_seed_of_torch():
    pytest.importorskip("metaworld")
    found = []
    for _ in range(2):
        torch.manual_seed(3)
        env = MetaWorldEnv("push-v3", num_envs=2)
        env.set_seed(0)
        found.append(env.reset()["observation"])
    assert torch.equal(*found)
    assert not torch.equal(*found[0])


@pytest.mark.slow
def test_meta_world_conforms_and_is_collected():
    pytest.importorskip("metaworld")
    short = {"seed": 1, "max_episode_steps": 20}
    check_env(lambda: MetaWorldEnv("reach-v3", num_envs=2, env_kwargs=short), steps=50, time_limit=20)
    collectors = pytest.importorskip("rl.collectors")
    batch = collectors.Collector(MetaWorldEnv("reach-v3", num_envs=2, env_kwargs=short), frames_per_batch=100).collect()
    assert batch["next", "truncated"].sum() == 4


@pytest.mark.parametrize(
    ("module", "make", "extra"),
    [
        ("mo_gymnasium", lambda: MOGymEnv("mo-mountaincar-v0"), "mo-gymnasium"),
        ("safety_gymnasium", lambda: SafetyGymnasiumEnv("SafetyPointGoal1-v0"), "safety-gymnasium"),
        ("metaworld", lambda: MetaWorldEnv("reach-v3"), "metaworld"),
    ],
)
def test_a_missing_library_is_named(module, make, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf'pip install "rl-envs\[{extra}\]"'):
        make()
