"""Back ends on JAX, each beside its library; `./x jax:test` runs them where the libraries are installed."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from rl.core.errors import MissingExtraError, RLError, SpecError, UnknownComponentError
from rl.core.testing import check_env
from rl.envs import (
    ActionMask,
    BraxEnv,
    BraxWrapper,
    GymnaxEnv,
    JumanjiEnv,
    MujocoPlaygroundEnv,
    MujocoPlaygroundWrapper,
    TransformedEnv,
    check_env_specs,
)

jax = pytest.importorskip("jax")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@dataclass
class State:
    """State of `Spring`, with the fields of Brax's."""

    place: jax.Array
    count: jax.Array
    obs: jax.Array
    reward: jax.Array
    done: jax.Array


jax.tree_util.register_dataclass(State, ["place", "count", "obs", "reward", "done"], [])


class Spring:
    """A mass that an action pushes, with the interface of Brax; it is done beyond 1.5."""

    action_size = 1

    def reset(self, rng):
        place = jax.random.uniform(rng, (2,), minval=-0.1, maxval=0.1)
        zero = jax.numpy.zeros(())
        return State(place, jax.numpy.zeros((), jax.numpy.int32), place, zero, zero)

    def step(self, state, action):
        speed = state.place[1] + 0.1 * (action[0] - state.place[0])
        place = jax.numpy.stack([state.place[0] + speed, speed])
        reward = -jax.numpy.square(place[0])
        done = (jax.numpy.abs(place[0]) > 1.5).astype(jax.numpy.float32)
        return State(place, state.count + 1, place, reward, done)


def carried(env, root):
    """Random keys and states of the simulator, of each element."""
    count = env.batch_size.numel()
    floats = jax.numpy.from_dlpack(root["state", "floats"].reshape(count, -1).contiguous())
    rest = jax.numpy.from_dlpack(root["state", "bytes"].reshape(count, -1).contiguous())
    keys, _, states = jax.vmap(env._packing.unpack)(floats, rest)
    return jax.vmap(lambda key: jax.random.split(key)[1])(keys), states


def close(tensor, array):
    array = np.asarray(array)
    np.testing.assert_allclose(tensor.reshape(array.shape).numpy(), array, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Breakout-MinAtar", "Catch-bsuite"])
def test_gymnax_steps_are_those_of_the_library(name):
    gymnax = pytest.importorskip("gymnax")
    raw, params = gymnax.make(name)
    env = GymnaxEnv(name, num_envs=4, categorical_action_encoding=True)
    step = jax.jit(jax.vmap(raw.step_env, in_axes=(0, 0, 0, None)))
    limit = jax.jit(jax.vmap(raw.is_truncated, in_axes=(0, None)))
    env.set_seed(0)
    root, ends = env.reset(), 0
    for _ in range(250):
        root = env.rand_action(root)
        keys, states = carried(env, root)
        action = root["action"].numpy()
        seen, states, reward, terminated, _ = step(keys, states, action, params)
        stepped, root = env.step_and_maybe_reset(root)
        then = stepped["next"]
        close(then["observation"], seen)
        close(then["reward"], reward)
        assert then["terminated"].flatten().tolist() == np.asarray(terminated, bool).tolist()
        over = np.asarray(limit(states, params), bool) & ~np.asarray(terminated, bool)
        assert then["truncated"].flatten().tolist() == over.tolist()
        ends += int(then["done"].sum())
    assert ends > 0


@pytest.mark.parametrize("name", ["Snake-v1", "Game2048-v1", "RubiksCube-v0"])
def test_jumanji_steps_are_those_of_the_library(name):
    jumanji = pytest.importorskip("jumanji")
    raw = jumanji.make(name)
    env = JumanjiEnv(name, num_envs=3, categorical_action_encoding=True)
    step = jax.jit(jax.vmap(raw.step))
    root, ends = env.reset(), 0
    for _ in range(250):
        root = env.rand_action(root)
        _, states = carried(env, root)
        _, then = step(states, root["action"].to(torch.int32).numpy())
        stepped, root = env.step_and_maybe_reset(root)
        found = stepped["next"]
        for key, leaf in zip(env._names, jax.tree_util.tree_leaves(then.observation), strict=True):
            close(found[key], leaf)
        close(found["reward"], then.reward)
        last, ended = np.asarray(then.last()), np.asarray(then.discount == 0)
        assert found["terminated"].flatten().tolist() == (last & ended).tolist()
        assert found["truncated"].flatten().tolist() == (last & ~ended).tolist()
        ends += int(last.sum())
    assert ends > 0 or name == "RubiksCube-v0"


def test_jumanji_masks_and_one_hot_choices():
    pytest.importorskip("jumanji")
    env = TransformedEnv(JumanjiEnv("Game2048-v1", num_envs=2), ActionMask())
    data = env.rollout(20)
    assert (data["action_mask"] & data["action"].bool()).any(-1).all()
    assert JumanjiEnv("RubiksCube-v0").rollout(3)["action"].shape == (3, 10)  # 6 + 1 + 3


@pytest.mark.parametrize("env_name", ["CartPole-v1"])
def test_conformance(env_name):
    pytest.importorskip("gymnax")
    check_env(lambda: GymnaxEnv(env_name, num_envs=2))
    check_env_specs(BraxWrapper(Spring(), num_envs=2))


def test_brax_truncates_and_terminates_and_steps_are_pure():
    env = BraxWrapper(Spring(), batch_size=[2, 2], max_episode_steps=15)
    env.set_seed(1)
    root = env.reset()
    push = torch.tensor([[[1.0], [0.0]], [[0.0], [0.0]]])
    data = env.rollout(20, lambda td: td.set("action", push), break_when_any_done=False)
    assert data["next", "truncated"][0, 1, 14]
    assert data["next", "terminated"][0, 0].any()
    assert not (data["next", "terminated"] & data["next", "truncated"]).any()
    root["action"] = push
    one, two = env.step(root.clone())["next"], env.step(root.clone())["next"]
    assert torch.equal(one["observation"], two["observation"])  # the state is that of the root
    assert env.unpacked_state(root).place.shape == (4, 2)
    saved, other = env.state_dict(), BraxWrapper(Spring(), batch_size=[2, 2])
    other.load_state_dict(saved)
    assert torch.equal(env.reset()["observation"], other.reset()["observation"])


def test_gradients_pass_through_steps():
    env = BraxWrapper(Spring(), num_envs=3, requires_grad=True)
    env.set_seed(0)
    root = env.reset()
    action = torch.full((3, 1), 0.3, requires_grad=True)
    first = root.clone()
    total = 0.0
    for _ in range(4):
        stepped = env.step(root.set("action", action))
        total = total + stepped["next", "reward"].sum()
        root = env.step_mdp(stepped)
    total.backward()

    def returns(act):
        place = first["observation"].double()
        out = 0.0
        for _ in range(4):
            speed = place[:, 1] + 0.1 * (act[:, 0] - place[:, 0])
            place = torch.stack([place[:, 0] + speed, speed], 1)
            out = out - place[:, 0].square().sum()
        return out

    expected = torch.autograd.functional.jacobian(returns, torch.full((3, 1), 0.3, dtype=torch.float64))
    torch.testing.assert_close(action.grad.double(), expected, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        assert not env.step(first.set("action", action))["next", "reward"].requires_grad


@pytest.mark.slow
def test_brax_and_playground_simulate():
    pytest.importorskip("brax")
    env = BraxEnv("inverted_pendulum", num_envs=2, backend="generalized", max_episode_steps=50)
    raw = env.brax_env
    step = jax.jit(jax.vmap(raw.step))
    root = env.reset()
    for _ in range(60):
        root = env.rand_action(root)
        _, states = carried(env, root)
        then = step(states, root["action"].numpy())
        stepped, root = env.step_and_maybe_reset(root)
        close(stepped["next", "observation"], then.obs)
        close(stepped["next", "reward"], then.reward)
        assert stepped["next", "terminated"].flatten().tolist() == (np.asarray(then.done) > 0).tolist()
    pytest.importorskip("mujoco_playground")
    env = MujocoPlaygroundEnv("CartpoleBalance", num_envs=2)
    data = env.rollout(5)
    assert data["observation"].isfinite().all()
    assert env.max_episode_steps == 1000


def test_playground_has_the_interface_of_brax():
    env = MujocoPlaygroundWrapper(Spring(), num_envs=2, max_episode_steps=3)
    assert env.rollout(5)["next", "truncated"][:, -1].all()


def test_wrong_input_is_refused(monkeypatch):
    pytest.importorskip("gymnax")
    with pytest.raises(UnknownComponentError, match="Did you mean 'CartPole-v1'"):
        GymnaxEnv("Cartpole-v1")
    with pytest.raises(SpecError, match="batch_size or num_envs, not both"):
        GymnaxEnv("CartPole-v1", batch_size=[2], num_envs=2)
    env = GymnaxEnv("CartPole-v1")
    with pytest.raises(RLError, match="cannot begin in a given state"):
        env.reset(env.reset(), set_state=True)
    with pytest.raises(TypeError, match="send a function"):
        __import__("pickle").dumps(env)
    for name, make in (
        ("gymnax", lambda: GymnaxEnv("CartPole-v1")),
        ("jumanji", lambda: JumanjiEnv("Snake-v1")),
        ("brax", lambda: BraxEnv("ant")),
        ("mujoco-playground", lambda: MujocoPlaygroundEnv("CartpoleBalance")),
    ):
        module = {"mujoco-playground": "mujoco_playground", "brax": "brax.envs"}.get(name, name)
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingExtraError, match=rf'pip install "rl-envs\[{name}\]"'):
            make()


def test_a_collector_runs():
    collectors = pytest.importorskip("rl.collectors")
    pytest.importorskip("gymnax")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch = collectors.Collector(GymnaxEnv("CartPole-v1", num_envs=8), frames_per_batch=400).collect()
    assert batch.shape == (8, 50)
    assert batch["next", "done"].any()
