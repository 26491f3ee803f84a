from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from rl.core.errors import ArgumentError
from rl.envs import PendulumEnv, StepCounter, TransformedEnv
from rl.testing import check_env


@given(
    th=st.floats(-20, 20),
    thdot=st.floats(-8, 8),
    torque=st.floats(-3, 3),
)
@settings(max_examples=60, deadline=None)
def test_a_step_is_that_of_gymnasium(th, thdot, torque):
    reference = gym.make("Pendulum-v1").unwrapped
    reference.reset()
    reference.state = np.array([th, thdot])
    observation, reward, *_ = reference.step(np.array([torque]))
    env = PendulumEnv()
    root = {"th": torch.tensor(th), "thdot": torch.tensor(thdot), "action": torch.tensor([torque])}
    outcome = env._step_leaves(root)
    np.testing.assert_allclose(outcome["observation"].numpy(), observation, atol=2e-5)
    angle = (th + np.pi) % (2 * np.pi)
    if 1e-3 < angle < 2 * np.pi - 1e-3:  # rounding decides the side at the lowest point
        np.testing.assert_allclose(outcome["reward"].item(), reward, atol=2e-4)
    assert outcome["th"].item() == pytest.approx(reference.state[0], abs=2e-5)


def test_start_states_cover_gymnasiums_range():
    root = PendulumEnv([4000], seed=0).reset()
    for key, high in (("th", np.pi), ("thdot", 1.0)):
        assert root[key].abs().max() <= high
        assert root[key].std().item() == pytest.approx(high / np.sqrt(3), rel=0.05)


def test_observation_is_cosine_sine_velocity():
    data = PendulumEnv([2], seed=1).rollout(5)
    expected = torch.stack([data["th"].cos(), data["th"].sin(), data["thdot"]], -1)
    torch.testing.assert_close(data["observation"], expected)


def test_the_return_is_differentiable():
    def total(torque):
        env = PendulumEnv()
        td = env.reset(TensorDict()).update({"th": torch.tensor(0.3), "thdot": torch.tensor(0.1)})
        out = 0.0
        for _ in range(3):
            stepped, td = env.step_and_maybe_reset(td.set("action", torque.reshape(1)))
            out = out + stepped["next", "reward"].sum()
        return out

    torque = torch.tensor(0.4, requires_grad=True)
    total(torque).backward()
    with torch.no_grad():
        slope = (total(torque + 1e-2) - total(torque - 1e-2)) / 2e-2
    assert torque.grad.item() == pytest.approx(slope.item(), rel=1e-2)


@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (0,)], ids=str)
def test_any_batch(batch):
    data = PendulumEnv(batch, seed=0).rollout(4)
    assert data.batch_size == (*batch, 4)
    assert data["next", "reward"].shape == (*batch, 4, 1)


def test_a_seed_in_the_constructor_and_set_seed_agree():
    first = PendulumEnv(seed=3).reset()["th"]
    env = PendulumEnv()
    env.set_seed(3)
    assert env.reset()["th"] == first
    assert env.reset()["th"] != first


def test_physics_can_be_changed():
    assert PendulumEnv(max_torque=5.0).action_spec.space.high.item() == 5.0
    with pytest.raises(ArgumentError, match=r"'gravity'.*max_torque"):
        PendulumEnv(gravity=3.0)
    with pytest.raises(ArgumentError, match="dt must be above 0"):
        PendulumEnv(dt=0.0)


@pytest.mark.parametrize("batch", [(), (3,), (2, 2)], ids=str)
def test_conformance(batch):
    check_env(lambda: PendulumEnv(batch))
    check_env(lambda: TransformedEnv(PendulumEnv(batch), StepCounter(5)))
