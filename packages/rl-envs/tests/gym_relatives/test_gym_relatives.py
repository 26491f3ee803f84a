"""Simulators with Gymnasium's interface and something more: vectors of rewards, costs, success."""

from __future__ import annotations

import sys
import types

import gymnasium
import numpy as np
import pytest
import torch

from rl.core.errors import MissingExtraError, SpecError, UnknownComponentError
from rl.core.testing import check_env
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
    env = TransformedEnv(
        MOGymEnv("mo-mountaincar-v0"), LineariseRewards(in_keys=["reward"], weights=torch.tensor([1.0, 0.0, 0.5]))
    )
    assert env.rollout(3)["next", "reward"].shape[-1] == 1
    with pytest.raises(UnknownComponentError, match="Did you mean 'mo-mountaincar-v0'"):
        MOGymEnv("mo-mountaincr-v0")
    with pytest.raises(SpecError, match="which have a reward_space"):
        MOGymWrapper(gymnasium.make("CartPole-v1"))


class Costly(gymnasium.Env):
    """The interface of Safety-Gymnasium: steps have six values. The cost is the number of the step."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.count += 1
        return np.full(2, 0.1, np.float32), 1.0, float(self.count), self.count == 4, False, {}


def test_costs_are_observations():
    env = SafetyGymnasiumWrapper([Costly(), Costly()])
    data = env.rollout(6, break_when_any_done=False)
    assert data["next", "cost"][0].flatten().tolist() == [1, 2, 3, 4, 1, 2]
    assert data["cost"][0].flatten().tolist() == [0, 1, 2, 3, 0, 1]
    check_env(lambda: SafetyGymnasiumWrapper(Costly()))


def test_safety_gymnasium_makes_environments_by_id(monkeypatch):
    library = types.ModuleType("safety_gymnasium")
    library.registry = {"SafetyPointGoal1-v0": None}
    library.make = lambda env_name, **_: Costly()
    monkeypatch.setitem(sys.modules, "safety_gymnasium", library)
    monkeypatch.setattr("rl.envs._libraries.version", lambda _: "1.0.0")
    assert SafetyGymnasiumEnv("SafetyPointGoal1-v0", num_envs=2).rollout(2)["cost"].shape == (2, 2, 1)
    with pytest.raises(UnknownComponentError, match="Did you mean 'SafetyPointGoal1-v0'"):
        SafetyGymnasiumEnv("SafetyPointGoal-v0")


def test_meta_world_steps_are_those_of_the_library():
    pytest.importorskip("metaworld")
    env = MetaWorldEnv("reach-v3", env_kwargs={"seed": 1})  # of the goals
    raw = gymnasium.make("Meta-World/MT1", env_name="reach-v3", disable_env_checker=True, seed=1)
    env.set_seed(0)
    seen, _ = raw.reset(seed=0)
    root = env.reset()
    np.testing.assert_array_equal(root["observation"].numpy(), seen)
    for _ in range(200):
        root = env.rand_action(root)
        seen, reward, terminated, truncated, info = raw.step(root["action"].numpy())
        stepped, root = env.step_and_maybe_reset(root)
        np.testing.assert_array_equal(stepped["next", "observation"].numpy(), seen)
        assert stepped["next", "reward"].item() == np.float32(reward)
        assert stepped["next", "success"].item() == info["success"]
        if terminated or truncated:
            break
    with pytest.raises(UnknownComponentError, match="Did you mean 'reach-v3'"):
        MetaWorldEnv("reach-v2")


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
