from __future__ import annotations

import os
import sys
import warnings

import numpy as np
import pytest
import torch

from rl.core.errors import ArgumentError, MissingExtraError, RLError, SpecError, UnknownComponentError
from rl.core.specs import Bounded, Categorical, OneHot, Unbounded
from rl.envs import DMControlEnv, DMControlWrapper, SerialEnv
from rl.testing import check_env

os.environ.setdefault("MUJOCO_GL", "egl")
pytest.importorskip("dm_control")
suite = pytest.importorskip("dm_control.suite")
dm_env = pytest.importorskip("dm_env")


class Toy(dm_env.Environment):
    """Observes the step, and a noise; an episode of kind k ends after ``2 + k`` steps, with the discount k."""

    def __init__(self, kinds=(0, 1), discrete=False):
        self.kinds, self.discrete = kinds, discrete
        self.random_state = np.random.RandomState(0)
        self.kind, self.count, self.over = 0, 0, True
        self.buffer = np.zeros(2)

    def observation_spec(self):
        return {
            "count": dm_env.specs.Array((), np.float64),
            "noise": dm_env.specs.BoundedArray((2,), np.float64, -1, 1),
        }

    def action_spec(self):
        return dm_env.specs.DiscreteArray(3) if self.discrete else dm_env.specs.BoundedArray((), np.float64, -2, 1)

    def _seen(self):
        self.buffer[:] = self.random_state.uniform(size=2)
        return {"count": float(self.count), "noise": self.buffer}

    def reset(self):
        self.kind = self.random_state.choice(self.kinds)
        self.count, self.over = 0, False
        return dm_env.restart(self._seen())

    def step(self, action):
        if self.over:
            return self.reset()
        self.count += 1
        self.over = self.count >= 2 + self.kind
        if self.over:
            return dm_env.TimeStep(dm_env.StepType.LAST, float(action), float(self.kind), self._seen())
        return dm_env.transition(float(action), self._seen())


@pytest.mark.parametrize(("domain", "task"), [("cheetah", "run"), ("cartpole", "swingup"), ("lqr", "lqr_2_1")])
def test_a_thousand_steps_are_those_of_the_library(domain, task):
    limits = {"time_limit": 0.7, "random": 5}
    env, reference = DMControlEnv(domain, task, task_kwargs=limits), suite.load(domain, task, limits)
    env.set_seed(3)
    reference.task.random.seed(3)
    spec = env.action_spec
    actions = Bounded(-1, 1, shape=(1000, *spec.shape)).rand()
    data = env.rollout(1000, actions=actions, break_when_any_done=False)
    first, ends = reference.reset(), 0
    names = list(env.observation_spec.keys())
    for index, action in enumerate(actions.numpy()):
        then = reference.step(action.astype(np.float64))
        for name in names:
            np.testing.assert_array_equal(data[name][index].numpy(), first.observation[name])
            np.testing.assert_array_equal(data["next", name][index].numpy(), then.observation[name])
        assert data["next", "reward"][index].item() == np.float32(then.reward)
        assert data["next", "terminated"][index].item() == (then.last() and then.discount == 0)
        assert data["next", "truncated"][index].item() == (then.last() and then.discount != 0)
        ends += then.last()
        first = reference.reset() if then.last() else then
    assert ends > 5


def test_names_keys_and_shapes():
    env = DMControlEnv("cheetah/run")
    assert str(env) == "DMControlEnv(env=cheetah-run, batch_size=torch.Size([]), device=None)"
    assert str(DMControlEnv("cheetah-run")) == str(DMControlEnv("cheetah", "run")) == str(env)
    assert "cheetah-run" in DMControlEnv.available_envs
    assert env.action_spec == Bounded(-1, 1, shape=(6,))
    assert env.observation_spec["velocity"] == Unbounded(9, dtype=torch.float64)
    outcome = {"position", "velocity", "reward", "done", "terminated", "truncated"}
    assert set(env.rand_step()["next"].keys()) == outcome


@pytest.mark.parametrize(("kind", "end"), [(0, "terminated"), (1, "truncated")])
def test_a_discount_of_zero_terminates_and_any_other_truncates(kind, end):
    data = DMControlWrapper(Toy(kinds=[kind])).rollout(2 * (2 + kind), break_when_any_done=False)
    counts = list(range(1, 3 + kind))
    assert data["next", "count"].flatten().tolist() == 2 * counts  # the terminal observation is kept
    assert data["count"].flatten().tolist() == 2 * [count - 1 for count in counts]
    for flag in ("terminated", "truncated"):
        ends = [flag == end and count == 2 + kind for count in counts]
        assert data["next", flag].flatten().tolist() == 2 * ends


def test_a_repeated_action_stops_at_the_end():
    data = DMControlWrapper(Toy(kinds=[1]), frame_skip=2).rollout(2, actions=torch.ones(2, 1))
    assert data["next", "count"].flatten().tolist() == [2, 3]
    assert data["next", "reward"].flatten().tolist() == [2, 1]


@pytest.mark.parametrize("categorical", [True, False])
def test_a_discrete_array_is_a_choice(categorical):
    env = DMControlWrapper(Toy(discrete=True), categorical_action_encoding=categorical)
    assert env.action_spec == (Categorical(3) if categorical else OneHot(3, dtype=torch.int64))
    env.reset()
    action = torch.tensor(2) if categorical else torch.tensor([0, 0, 1])
    assert env.rollout(1, actions=action.unsqueeze(0))["next", "reward"].item() == 2


@pytest.mark.parametrize("make", [Toy, lambda: Toy(discrete=True)], ids=["box", "discrete"])
def test_conformance(make):
    check_env(lambda: DMControlWrapper(make()), steps=30)
    check_env(lambda: SerialEnv(3, lambda: DMControlWrapper(make())), steps=30)


def test_conformance_of_a_task():
    short = {"task_kwargs": {"time_limit": 0.1}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no task of the suite that is fast terminates
        check_env(lambda: DMControlEnv("cartpole", "swingup", **short), steps=25, time_limit=10)


def test_several_are_stepped_together():
    env = SerialEnv(3, lambda: DMControlWrapper(Toy()))
    env.set_seed(0)
    root = env.reset()
    root["_reset"] = torch.tensor([[False], [True], [False]])
    fresh = env.reset(root.clone())
    assert (fresh["noise"] == root["noise"]).all(-1).tolist() == [True, False, True]
    assert env.lowered() is not None


def test_a_collector_runs():
    collectors = pytest.importorskip("rl.collectors")
    batch = collectors.Collector(SerialEnv(2, lambda: DMControlWrapper(Toy())), frames_per_batch=20).collect()
    assert batch["collector", "traj_ids"].max() > 1


def test_pixels():
    try:
        env = DMControlEnv(
            "cartpole", "balance", from_pixels=True, pixels_only=True, render_kwargs={"height": 16, "width": 24}
        )
    except Exception as error:  # noqa: BLE001  # a renderer fails in many ways
        pytest.skip(f"no renderer works here: {error}")
    data = env.rollout(3)
    assert data["pixels"].shape == (3, 16, 24, 3)
    assert data["pixels"].float().std() > 0
    assert list(env.observation_spec.keys()) == ["pixels"]
    env.close()


def test_errors_say_what_to_do(monkeypatch):
    with pytest.raises(UnknownComponentError, match=r"'chetah-run'\. Did you mean 'cheetah-run'"):
        DMControlEnv("chetah", "run")
    with pytest.raises(ArgumentError, match=r"dm_control\.suite\.load"):
        DMControlWrapper(3)
    with pytest.raises(ArgumentError, match="needs from_pixels=True"):
        DMControlEnv("cheetah-run", pixels_only=True)
    env = DMControlWrapper(Toy(kinds=[-1]))
    with pytest.raises(SpecError, match="not in its spec"):
        env.step(env.reset().set("action", torch.full((1,), 7.0)))
    stepped = env.rand_step()
    with pytest.raises(RLError, match="the episode is over"):
        env.rand_step(env.step_mdp(stepped))
    monkeypatch.setitem(sys.modules, "dm_control.suite", None)
    with pytest.raises(MissingExtraError, match=r'pip install "rl-envs\[dm-control\]"'):
        DMControlEnv("cheetah-run")


def test_mujoco_4_is_refused(monkeypatch):
    monkeypatch.setattr("rl.envs._libraries.version", lambda _: "4.0.0")
    with pytest.raises(MissingExtraError, match=r'mujoco below 4, found 4.0.0: pip install "mujoco<4"'):
        DMControlEnv("cheetah-run")
