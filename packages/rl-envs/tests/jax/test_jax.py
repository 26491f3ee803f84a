"""Back ends on JAX, each beside its library; `./x jax:test` runs them where the libraries are installed."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from rl.core.errors import MissingExtraError, RLError, SpecError, UnknownComponentError
from rl.envs import (
    ActionMask,
    BraxEnv,
    BraxWrapper,
    GymnaxEnv,
    JumanjiEnv,
    MujocoPlaygroundEnv,
    MujocoPlaygroundWrapper,
    TransformedEnv,
)
from rl.testing import check_env

jax = pytest.importorskip("jax")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def compiled_once(tmp_path_factory):
    """Environments that are rebuilt are not compiled twice."""
    jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.mktemp("compiled")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    yield
    jax.config.update("jax_compilation_cache_dir", None)


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


class Raw:
    """A simulator's own functions, with states and random keys apart from ours, which begin with the key `seed`.

    New episodes get the parts of a split of the first half of the key, in order; the second half follows when they are
    used up. An element splits its key once at the start, and once for each step.

    Args:
        reset: of a key, to the state and the observation.
        step: of key, state and action, to state, observation, reward, and whether the episode terminates or is cut.
    """

    def __init__(self, reset, step, count, seed):
        self.count, self.key = count, jax.random.key(seed)

        def begin(key):
            mine, first = jax.random.split(key)
            return mine, *reset(first)

        def advance(key, state, action):
            mine, now = jax.random.split(key)
            return mine, *step(now, state, action)

        self._begin, self._advance = jax.jit(jax.vmap(begin)), jax.jit(jax.vmap(advance))
        self._put = jax.jit(lambda old, new, put, take: jax.tree.map(lambda a, b: a.at[put].set(b[take]), old, new))
        self._block, self._used = None, count
        self.keys, self.states, self.seen = self._new()

    def _new(self):
        self.key, now = jax.random.split(self.key)
        self._used = 0
        return self._begin(jax.random.split(now, self.count))

    def reset(self, done):
        """New episodes where `done` is true."""
        (rows,) = done.nonzero()
        if self._block is None or self._used + len(rows) > self.count:
            self._block = self._new()
        for row in rows:
            kept = self.keys, self.states, self.seen
            self.keys, self.states, self.seen = self._put(kept, self._block, row, self._used)
            self._used += 1

    def step(self, action):
        self.keys, self.states, self.seen, reward, terminated, truncated = self._advance(self.keys, self.states, action)
        terminated, truncated = (np.asarray(flag, bool) for flag in (terminated, truncated))
        return reward, terminated, truncated & ~terminated


def same(tensor, array):
    array = np.asarray(array)
    np.testing.assert_allclose(tensor.reshape(array.shape).numpy(), array, rtol=1e-6, atol=1e-6)


def compare(env, reset, step, limit=None):
    """A thousand steps with resets; return how many episodes ended."""
    count = env.batch_size.numel()
    raw, age, ends = Raw(reset, step, count, 3), np.zeros(count, int), 0
    env.set_seed(3)
    root = env.reset()
    for _ in range(1000):
        for key, leaf in zip(env._names, jax.tree.leaves(raw.seen), strict=True):
            same(root[key], leaf)
        stepped, root = env.step_and_maybe_reset(env.rand_action(root))
        action = stepped["action"]
        reward, terminated, truncated = raw.step(
            (action.float() if action.is_floating_point() else action.int()).numpy()
        )
        age += 1
        if limit is not None:
            truncated = truncated | (age >= limit) & ~terminated
        then, over = stepped["next"], terminated | truncated
        for key, leaf in zip(env._names, jax.tree.leaves(raw.seen), strict=True):
            same(then[key], leaf)
        same(then["reward"], reward)
        assert then["terminated"].flatten().tolist() == terminated.tolist()
        assert then["truncated"].flatten().tolist() == truncated.tolist()
        raw.reset(over)
        age[over] = 0
        ends += over.sum()
    return ends


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Breakout-MinAtar", "Catch-bsuite"])
def test_a_thousand_steps_are_those_of_gymnax(name):
    gymnax = pytest.importorskip("gymnax")
    raw, params = gymnax.make(name)

    def step(key, state, action):
        seen, state, reward, terminated, _ = raw.step_env(key, state, action, params)
        return state, seen, reward, terminated, raw.is_truncated(state, params)

    env = GymnaxEnv(name, num_envs=4, categorical_action_encoding=True)
    assert compare(env, lambda key: raw.reset_env(key, params)[::-1], step) >= 16


@pytest.mark.parametrize("name", ["Snake-v1", "Game2048-v1", "RubiksCube-v0"])
def test_a_thousand_steps_are_those_of_jumanji(name):
    jumanji = pytest.importorskip("jumanji")
    raw = jumanji.make(name)

    def reset(key):
        state, begun = raw.reset(key)
        return state, begun.observation

    def step(key, state, action):
        state, then = raw.step(state, action)
        ends = then.discount == 0
        return state, then.observation, then.reward, then.last() & ends, then.last() & ~ends

    env = JumanjiEnv(name, num_envs=3, categorical_action_encoding=True)
    assert compare(env, reset, step) >= 10


def of_brax(raw):
    def reset(key):
        state = raw.reset(key)
        return state, state.obs

    def step(key, state, action):
        state = raw.step(state, action)
        return state, state.obs, state.reward, state.done > 0, False

    return reset, step


@pytest.mark.slow
def test_a_thousand_steps_are_those_of_brax():
    brax = pytest.importorskip("brax.envs")
    settings = {"backend": "generalized"}
    env = BraxEnv("inverted_pendulum", num_envs=2, max_episode_steps=50, **settings)
    raw = brax.get_environment("inverted_pendulum", **settings)
    assert compare(env, *of_brax(raw), limit=50) >= 40


@pytest.mark.slow
def test_a_thousand_steps_are_those_of_mujoco_playground():
    playground = pytest.importorskip("mujoco_playground")
    env = MujocoPlaygroundEnv("CartpoleBalance", num_envs=2, max_episode_steps=300)
    assert MujocoPlaygroundEnv("CartpoleBalance").max_episode_steps == 1000
    raw = playground.registry.load("CartpoleBalance", config_overrides={"impl": "jax"})
    assert compare(env, *of_brax(raw), limit=300) >= 6


def test_jumanji_masks_and_one_hot_choices():
    pytest.importorskip("jumanji")
    env = TransformedEnv(JumanjiEnv("Game2048-v1", num_envs=2), ActionMask())
    data = env.rollout(20)
    assert (data["action_mask"] & data["action"].bool()).any(-1).all()
    assert JumanjiEnv("RubiksCube-v0").rollout(3)["action"].shape == (3, 10)  # 6 + 1 + 3


def gymnax_env():
    pytest.importorskip("gymnax")
    return GymnaxEnv("CartPole-v1", num_envs=2)


def jumanji_env():
    pytest.importorskip("jumanji")
    return JumanjiEnv("Snake-v1", num_envs=2)


def spring_env():
    return BraxWrapper(Spring(), num_envs=2, max_episode_steps=15)


def brax_env():
    pytest.importorskip("brax")
    return BraxEnv("inverted_pendulum", num_envs=2, backend="generalized", max_episode_steps=15)


def playground_env():
    pytest.importorskip("mujoco_playground")
    return MujocoPlaygroundEnv("CartpoleBalance", num_envs=2, max_episode_steps=15)


ALL = [
    gymnax_env,
    spring_env,
    *(pytest.param(make, marks=pytest.mark.slow) for make in (jumanji_env, brax_env, playground_env)),
]


@pytest.mark.parametrize("make", ALL)
def test_conformance_and_a_collector(make):
    check_env(make, steps=50)
    collectors = pytest.importorskip("rl.collectors")
    batch = collectors.Collector(make(), frames_per_batch=200).collect()
    assert batch.shape == (2, 100)
    assert batch["next", "done"].any()


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
