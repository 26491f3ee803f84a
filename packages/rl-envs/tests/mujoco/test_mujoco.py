from __future__ import annotations

import sys

import gymnasium
import numpy as np
import pytest
import torch

from rl.core.errors import ArgumentError, MissingExtraError, RLError
from rl.envs import AntEnv, HalfCheetahEnv, HopperEnv, HumanoidEnv, MujocoEnv, Walker2dEnv
from rl.testing import check_env

pytest.importorskip("mujoco")

TASKS = {
    "HalfCheetah-v5": HalfCheetahEnv,
    "Hopper-v5": HopperEnv,
    "Walker2d-v5": Walker2dEnv,
    "Ant-v5": AntEnv,
    "Humanoid-v5": HumanoidEnv,
}


@pytest.mark.parametrize("name", TASKS)
def test_a_thousand_steps_are_those_of_gymnasium(name):
    count, steps = 2, 1000
    env = TASKS[name](count, num_threads=2)
    env.set_seed(7)
    generator = torch.Generator().manual_seed(0)
    low, high = env.action_spec.space.low, env.action_spec.space.high
    actions = low.unsqueeze(1) + (high - low).unsqueeze(1) * torch.rand(
        (count, steps, low.shape[-1]), generator=generator
    )
    data = env.rollout(steps, actions=actions, break_when_any_done=False)
    ends = 0
    for row in range(count):
        reference = gymnasium.make(name).unwrapped
        seen, _ = reference.reset(seed=7 + row)
        for step in range(steps):
            np.testing.assert_array_equal(data["observation"][row, step].numpy(), seen)
            seen, reward, terminated, _, _ = reference.step(actions[row, step].numpy())
            np.testing.assert_array_equal(data["next", "observation"][row, step].numpy(), seen)
            assert data["next", "reward"][row, step].item() == np.float32(reward)
            assert data["next", "terminated"][row, step].item() == terminated
            if terminated:
                ends += 1
                seen, _ = reference.reset()
    assert ends > 0 or name == "HalfCheetah-v5"
    env.close()


@pytest.mark.parametrize("count", [None, 3])
def test_conformance(count):
    check_env(lambda: HopperEnv(count))


def test_a_collector_runs():
    collectors = pytest.importorskip("rl.collectors")
    batch = collectors.Collector(HopperEnv(2), frames_per_batch=200).collect()
    assert batch["collector", "traj_ids"].max() > 3


def test_the_number_of_threads_changes_nothing():
    found = []
    for threads in (1, 3):
        env = Walker2dEnv(5, num_threads=threads)
        env.set_seed(0)
        torch.manual_seed(0)
        found.append(env.rollout(60, break_when_any_done=False)["observation"])
    assert torch.equal(*found)


def test_a_saved_simulation_continues_exactly():
    torch.manual_seed(0)
    env, other = AntEnv(2), AntEnv(2)
    root = env.step_mdp(env.rollout(20)[:, -1])
    other.load_state_dict(env.state_dict())
    for _ in range(60):
        root = env.rand_action(root)
        one, two = env.step(root.clone()), other.step(root.clone())
        for key in ("observation", "reward", "done"):
            assert torch.equal(one["next", key], two["next", key])
        root, again = env.maybe_reset(env.step_mdp(one)), other.maybe_reset(other.step_mdp(two))
        assert torch.equal(root["observation"], again["observation"])


def test_settings_and_wrong_input(monkeypatch, tmp_path):
    env = HopperEnv(terminate_when_unhealthy=False, healthy_reward=0.0, ctrl_cost_weight=0.0, frame_skip=2)
    data = env.rollout(300, break_when_any_done=False)
    assert not data["next", "done"].any()
    assert env.dt == pytest.approx(0.004)
    with pytest.raises(ArgumentError, match=r"there is no model 'no\.xml'"):
        HopperEnv(xml_file="no.xml")
    with pytest.raises(RLError, match="does not implement _observe"):
        MujocoEnv(1, xml_file="hopper.xml")
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(MissingExtraError, match=r'pip install "rl-envs\[mujoco\]"'):
        HopperEnv()
