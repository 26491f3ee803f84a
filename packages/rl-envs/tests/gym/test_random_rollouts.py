"""Random rollouts of one simulator, which takes all actions in one call: equal to those step by step."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl.core.errors import RLError, SpecError
from rl.envs import ActionMask, GymEnv, GymWrapper, TransformedEnv


class Odd(gym.Env):
    """Returns rewards and flags of several types; its buffer is the same at all steps.

    Args:
        seen: Observation space.
        acts: Action space.
        wrong_at: Step at which the observation has another shape.
    """

    def __init__(self, seen=None, acts=None, wrong_at=-1, failing_at=-1):
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64) if seen is None else seen
        self.action_space = spaces.Discrete(3, start=4) if acts is None else acts
        self.wrong_at, self.failing_at, self.total, self.given = wrong_at, failing_at, 0, []
        self.buffer = np.zeros(2)

    def _seen(self):
        if isinstance(self.observation_space, spaces.Discrete):
            return self.total % 5
        self.buffer[:] = self.total, self.np_random.random()
        return np.zeros(3) if self.total == self.wrong_at else self.buffer

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self._seen(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.given.append(action)
        self.count, self.total = self.count + 1, self.total + 1
        if self.total == self.failing_at:
            raise ValueError("the motor is hot")
        reward = (1.0 / 3, 2, np.float32(0.1), np.array([0.7]), np.float64(1 / 7))[self.total % 5]
        over = self.count == 3 + self.total % 4
        terminated = (over, np.bool_(over), np.array([over]), 1 if over else 0)[self.total % 4]
        return self._seen(), reward, terminated, self.count == 5, {}


MAKERS = {
    "cartpole": lambda: GymEnv("CartPole-v1"),
    "pendulum": lambda: GymEnv("Pendulum-v1"),
    "categorical": lambda: GymEnv("CartPole-v1", categorical_action_encoding=True),
    "frozen lake": lambda: GymEnv("FrozenLake-v1", frame_skip=2),
    "odd": lambda: GymWrapper(Odd()),
    "choices": lambda: GymWrapper(Odd(acts=spaces.MultiDiscrete([2, 3]))),
    "choice seen": lambda: GymWrapper(Odd(seen=spaces.Discrete(5))),
    "dictionary of actions": lambda: GymWrapper(Odd(acts=spaces.Dict(a=spaces.Discrete(2), b=spaces.Box(0, 1, (2,))))),
}


def prepare(make, *, step_by_step):
    env = make()
    env.set_seed(5)
    env.rollout(2)  # the first steps are compared with the specs
    env.debug = step_by_step  # so are all of them, one by one
    torch.manual_seed(3)
    return env


def both(make, *args, **kwargs):
    return [prepare(make, step_by_step=slow).rollout(*args, **kwargs) for slow in (False, True)]


def assert_same(fast, slow):
    assert list(fast.keys()) == list(slow.keys())
    assert (fast.batch_size, fast.names) == (slow.batch_size, slow.names)
    for key, leaf in slow.items(include_nested=True, leaves_only=True):
        assert leaf.dtype == fast[key].dtype, key
        assert torch.equal(leaf, fast[key]), key
        assert fast[key].is_contiguous(), key


@pytest.fixture
def calls(monkeypatch):
    """Names of environments whose rollouts took all actions in one call."""
    # No public name says which way a rollout took: only that it takes less time.
    from rl.envs.gym._stepping import GymLeaves

    made, play = [], GymLeaves.play

    def record(self, *args, **kwargs):
        found = play(self, *args, **kwargs)
        made.append(found is not None)
        return found

    monkeypatch.setattr(GymLeaves, "play", record)
    return made


@pytest.mark.parametrize("options", [{}, {"break_when_any_done": False}, {"set_truncated": True}], ids=str)
@pytest.mark.parametrize("kind", MAKERS)
def test_the_steps_are_those_one_by_one(kind, options, calls):
    assert_same(*both(MAKERS[kind], 57, **options))
    assert calls == [True]


@pytest.mark.parametrize("kind", ["cartpole", "odd"])
def test_the_environment_and_the_generators_go_on_as_after_single_steps(kind):
    states = []
    for slow in (False, True):
        env = prepare(MAKERS[kind], step_by_step=slow)
        data = env.rollout(40, break_when_any_done=False)
        more = env.rollout(7, tensordict=env.step_mdp(data[-1]), auto_reset=False)
        again = MAKERS[kind]()
        again.set_seed(0)
        again.reset()
        restored = kind == "odd" or again.load_state_dict(env.state_dict())
        states.append((more, torch.rand(3), restored, env.rand_step(env.reset())))
    (fast, drawn, restored, last), (slow, other, _, end) = states
    assert_same(fast, slow)
    assert torch.equal(drawn, other)
    assert restored
    assert torch.equal(last["next", "observation"], end["next", "observation"])


def test_actions_reach_the_simulator_as_in_single_steps():
    given = []
    for slow in (False, True):
        env = prepare(MAKERS["odd"], step_by_step=slow)
        env.rollout(9)
        given.append([(type(action), action) for action in env.gym_env.given])
    assert given[0] == given[1]


def test_entries_of_the_start_that_the_environment_does_not_write_are_kept(calls):
    data = []
    for slow in (False, True):
        env = prepare(MAKERS["cartpole"], step_by_step=slow)
        start = env.reset().set("goal", torch.tensor([7.0]))
        data.append(env.rollout(12, auto_reset=False, tensordict=start, break_when_any_done=False))
    assert_same(*data)
    assert data[0]["goal"].eq(7).all()
    assert not calls


def test_more_steps_than_are_drawn_at_once(calls):
    fast, slow = both(MAKERS["cartpole"], 9000, break_when_any_done=False)
    assert_same(fast, slow)
    assert not calls


@pytest.mark.parametrize("method", ["_step_leaves", "_reset_leaves", "lowered"])
def test_a_class_that_changes_its_steps_is_stepped_by_them(method):
    count = 0

    def changed(self, *args):
        nonlocal count
        count += 1
        return getattr(GymEnv, method)(self, *args)

    kind = type("Changed", (GymEnv,), {method: changed})
    env = kind("CartPole-v1")
    env.rollout(2)
    count = 0
    env.rollout(20, break_when_any_done=False)
    assert count >= (20 if method == "_step_leaves" else 1)


def test_wrong_observations_and_failures_of_the_simulator_are_named():
    env = prepare(lambda: GymWrapper(Odd(wrong_at=9)), step_by_step=False)
    with pytest.raises(SpecError, match=r"Odd returned 'observation' of shape \[3\], expected \[2\]"):
        env.rollout(20, break_when_any_done=False)
    env = prepare(lambda: GymWrapper(Odd(failing_at=9)), step_by_step=False)
    with pytest.raises(ValueError, match="the motor is hot"):
        env.rollout(20, break_when_any_done=False)
    env.close()
    with pytest.raises(RLError, match="closed"):
        env.rollout(20)


def test_masks_of_legal_actions_are_read_at_each_step(calls):
    class Masked(Odd):
        def __init__(self):
            super().__init__(seen=spaces.Dict(action_mask=spaces.MultiBinary(3)), acts=spaces.Discrete(3))

        def _seen(self):
            return {"action_mask": np.eye(3, dtype=np.int8)[self.total % 3]}

    env = TransformedEnv(GymWrapper(Masked()), ActionMask())
    for _ in range(2):
        data = env.rollout(12, break_when_any_done=False)
        assert torch.equal(data["action"], data["action_mask"].long())
    assert not calls
