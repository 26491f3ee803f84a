"""`UnityMLAgentsWrapper` on a scene with the interface that ML-Agents documents."""

from __future__ import annotations

import sys
import types
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

from rl.core.errors import ArgumentError, MissingExtraError, UnknownComponentError
from rl.envs import SerialEnv, UnityMLAgentsEnv, UnityMLAgentsWrapper
from rl.testing import check_env


class ActionTuple(NamedTuple):
    continuous: np.ndarray
    discrete: np.ndarray


@pytest.fixture(autouse=True)
def library(monkeypatch):
    """The modules of ``mlagents_envs`` that are used."""
    modules = {name: types.ModuleType(f"mlagents_envs.{name}") for name in ("base_env", "environment", "registry")}
    modules["base_env"].ActionTuple = ActionTuple
    modules["environment"].UnityEnvironment = lambda file_name, **settings: Balls(**settings)
    modules["registry"].default_registry = {"Balls": SimpleNamespace(make=Balls)}
    monkeypatch.setitem(sys.modules, "mlagents_envs", types.ModuleType("mlagents_envs"))
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, f"mlagents_envs.{name}", module)


def steps(agents, width, mask=None, **more):
    count = len(agents)
    return SimpleNamespace(
        agent_id=np.array([a["id"] for a in agents], np.int32),
        obs=[np.array([a["seen"] for a in agents], np.float32).reshape(count, width)],
        reward=np.array([a["reward"] for a in agents], np.float32),
        group_reward=np.full(count, 0.5, np.float32),
        action_mask=mask,
        **more,
    )


class Balls:
    """Two agents that balance, and one that chooses at every second simulation step and never ends.

    The balancing agents end after 2 and 4 steps: the first terminates, the second is interrupted. Unity respawns them
    with new numbers at once.
    """

    def __init__(self):
        sensor = SimpleNamespace(name="vector", shape=(3,))
        move = SimpleNamespace(continuous_size=2, discrete_branches=())
        choose = SimpleNamespace(continuous_size=0, discrete_branches=(3,))
        self.behavior_specs = {
            "Ball?team=0": SimpleNamespace(observation_specs=[sensor], action_spec=move),
            "Judge?team=0": SimpleNamespace(observation_specs=[sensor], action_spec=choose),
        }
        self.next, self.sent, self.closed = 0, {}, False

    def _agent(self, limit):
        self.next += 1
        return {"id": self.next, "seen": [0, 0, limit], "reward": 0.0, "age": 0, "limit": limit}

    def reset(self):
        self.balls, self.judge = [self._agent(2), self._agent(4)], self._agent(0)
        self.over, self.time, self.sent = [], 0, {}

    def get_steps(self, behavior):
        if behavior.startswith("Judge"):
            deciding = [self.judge] if self.time % 2 == 0 else []
            mask = [np.array([[False, True, False]] * len(deciding), bool).reshape(-1, 3)]
            return steps(deciding, 3, mask), steps([], 3, interrupted=np.zeros(0, bool))
        cut = np.array([a["limit"] == 4 for a in self.over], bool)
        return steps(self.balls, 3), steps(self.over, 3, interrupted=cut)

    def set_actions(self, behavior, action):
        rows = len(self.get_steps(behavior)[0].agent_id)
        assert len(action.continuous) == len(action.discrete) == rows
        self.sent[behavior] = action

    def step(self):
        self.time += 1
        self.over = []
        push = self.sent["Ball?team=0"].continuous
        for row, agent in enumerate(self.balls):
            agent["age"] += 1
            agent["reward"], agent["seen"] = float(push[row, 0]), [0, agent["age"], agent["limit"]]
            if agent["age"] == agent["limit"]:
                self.over.append(agent)
                self.balls[row] = self._agent(agent["limit"])

    def close(self):
        self.closed = True


def test_agents_are_grouped_by_behavior_and_leave_when_they_end():
    env = UnityMLAgentsWrapper(Balls())
    assert env.group_map == {"Ball": ["Ball_0", "Ball_1"], "Judge": ["Judge_0"]}
    assert env.action_spec["Judge", "action"].n == 3
    root = env.reset()
    assert root["Judge", "action_mask"].tolist() == [[True, False, True]]
    masks, ends, cuts, rewards = [], [], [], []
    for _ in range(4):
        root = env.rand_action(root)
        root["Ball", "action"].fill_(0.25)
        root["Judge", "action"].fill_(2)
        after = env.step(root)["next"]
        masks.append(after["Ball", "mask"].tolist())
        ends.append(after["Ball", "terminated"].flatten().tolist())
        cuts.append(after["Ball", "truncated"].flatten().tolist())
        rewards.append(after["Ball", "reward"].flatten().tolist())
        root = after.exclude("reward")
    assert masks == [[True, True], [False, True], [False, True], [False, False]]
    assert ends == [[False, False], [True, False], [True, False], [True, False]]
    assert cuts == [[False, False], [False, False], [False, False], [False, True]]
    assert rewards == [[0.75, 0.75], [0.75, 0.75], [0.0, 0.75], [0.0, 0.75]]  # the agent's and its group's
    assert not after["done"].any()  # the judge has not ended
    assert env.unity_env.sent["Judge?team=0"].discrete.tolist() == [[2]]


def test_an_end_of_any_agent_ends_the_scene():
    env = UnityMLAgentsWrapper(Balls(), done_on_any=True)
    data = env.rollout(10)
    assert len(data) == 2
    assert data["next", "Ball", "observation"][-1].tolist() == [[0, 2, 2], [0, 2, 4]]
    assert data["next", "terminated"].flatten().tolist() == [False, True]
    env.close()
    assert env.unity_env.closed


def test_a_thousand_steps_are_those_of_the_interface():
    env, raw = UnityMLAgentsWrapper(Balls(), done_on_any=True), Balls()
    raw.reset()
    root, ends = env.reset(), 0
    for _ in range(1000):
        env.rand_action(root)
        before, _ = raw.get_steps("Ball?team=0")
        assert root["Ball", "observation"].tolist() == before.obs[0].tolist()
        raw.set_actions("Ball?team=0", ActionTuple(root["Ball", "action"].numpy(), np.zeros((2, 0), np.int32)))
        stepped, root = env.step_and_maybe_reset(root)
        raw.step()
        deciding, over = raw.get_steps("Ball?team=0")
        cut = dict(zip(over.agent_id.tolist(), over.interrupted.tolist(), strict=True))
        then = stepped["next", "Ball"]
        for index, agent in enumerate(before.agent_id.tolist()):
            found = over if agent in cut else deciding
            row = found.agent_id.tolist().index(agent)
            assert then["observation"][index].tolist() == found.obs[0][row].tolist()
            assert then["reward"][index].item() == found.reward[row] + found.group_reward[row]
            assert then["terminated"][index].item() == (cut.get(agent) is False)
        assert stepped["next", "done"].item() == bool(cut)
        if cut:
            raw.reset()
            ends += 1
    assert ends == 500


def test_conformance_and_a_collector():
    make = lambda: UnityMLAgentsWrapper(Balls(), done_on_any=True)
    check_env(make)
    check_env(lambda: SerialEnv(2, make))
    collectors = pytest.importorskip("rl.collectors")
    batch = collectors.Collector(SerialEnv(2, make), frames_per_batch=40).collect()
    assert batch["collector", "traj_ids"].max() == 19


def test_scenes_are_started_by_file_or_name():
    assert UnityMLAgentsEnv("balls.x86_64").rollout(1).shape == (1,)
    assert UnityMLAgentsEnv(registered_name="Balls").group_map["Judge"] == ["Judge_0"]
    with pytest.raises(UnknownComponentError, match="Did you mean 'Balls'"):
        UnityMLAgentsEnv(registered_name="Bals")
    with pytest.raises(ArgumentError, match=r"wraps a mlagents_envs.environment.UnityEnvironment"):
        UnityMLAgentsWrapper(object())


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlagents_envs.environment", None)
    with pytest.raises(MissingExtraError, match=r'pip install "rl-envs\[unity-mlagents\]"'):
        UnityMLAgentsEnv("balls.x86_64")


def test_masks_of_several_branches_are_one_after_the_other():
    class Panels(Balls):
        def __init__(self):
            super().__init__()
            self.behavior_specs["Judge?team=0"].action_spec.discrete_branches = (3, 2)

        def get_steps(self, behavior):
            deciding, ended = super().get_steps(behavior)
            if behavior.startswith("Judge"):
                rows = len(deciding.agent_id)
                deciding.action_mask.append(np.array([[True, False]] * rows, bool).reshape(-1, 2))
            return deciding, ended

    env = UnityMLAgentsWrapper(Panels(), categorical_actions=True)
    assert env.reset()["Judge", "action_mask"].tolist() == [[True, False, True, False, True]]
    assert env.full_action_spec["Judge", "action"].shape == (1, 2)
