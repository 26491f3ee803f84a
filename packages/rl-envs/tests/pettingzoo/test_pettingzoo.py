from __future__ import annotations

import os
import sys

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl.core.errors import ArgumentError, MissingExtraError, RLError, SpecError, UnknownComponentError
from rl.core.specs import Categorical, OneHot
from rl.envs import ActionMask, MarlGroupMapType, PettingZooEnv, PettingZooWrapper, SerialEnv, TransformedEnv
from rl.testing import check_env

os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
pettingzoo = pytest.importorskip("pettingzoo")
pytest.importorskip("mpe2")


class Race(pettingzoo.ParallelEnv):
    """Each agent observes the step; agent ``a_i`` is done after ``ends[i]`` steps; even agents terminate."""

    metadata = {"name": "race"}  # noqa: RUF012

    def __init__(self, ends=(2, 4), sizes=None):
        self.ends, self.sizes = ends, sizes or [1] * len(ends)
        self.possible_agents = [f"a_{index}" for index in range(len(ends))]

    def observation_space(self, agent):
        return gym.spaces.Box(0, 100, (self.sizes[int(agent[2:])],), np.float32)

    def action_space(self, agent):
        return gym.spaces.Discrete(3)

    def _seen(self):
        return {agent: np.full(self.observation_space(agent).shape, self.count, np.float32) for agent in self.agents}

    def reset(self, seed=None, options=None):
        self.agents, self.count = list(self.possible_agents), 0
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions):
        assert set(actions) == set(self.agents)
        self.count += 1
        seen, rewards = self._seen(), {agent: float(action) for agent, action in actions.items()}
        over = {agent: self.count >= self.ends[int(agent[2:])] for agent in self.agents}
        terminated = {agent: done and int(agent[2:]) % 2 == 0 for agent, done in over.items()}
        truncated = {agent: done and int(agent[2:]) % 2 == 1 for agent, done in over.items()}
        self.agents = [agent for agent in self.agents if not over[agent]]
        return seen, rewards, terminated, truncated, {agent: {} for agent in seen}

    def state(self):
        return np.full(3, self.count, np.float32)


class Masked(Race):
    """The legal action is the number of the step, reported in ``info``."""

    def _infos(self):
        return {agent: {"action_mask": np.arange(3) == self.count} for agent in self.possible_agents}

    def reset(self, seed=None, options=None):
        seen, _ = super().reset(seed)
        return seen, self._infos()

    def step(self, actions):
        return *super().step(actions)[:4], self._infos()


CASES = [
    pytest.param("mpe2/simple_spread_v3", {"max_cycles": 23}, {}, id="one-group"),
    pytest.param("mpe2/simple_tag_v3", {"max_cycles": 23}, {"return_state": True}, id="two-groups"),
    pytest.param("mpe2/simple_spread_v3", {"max_cycles": 23, "continuous_actions": True}, {}, id="continuous"),
    pytest.param(
        "mpe2/simple_speaker_listener_v4",
        {"max_cycles": 23},
        {"group_map": MarlGroupMapType.ONE_GROUP_PER_AGENT},
        id="group-per-agent",
    ),
    pytest.param(
        "butterfly/knights_archers_zombies_v11",
        {"max_cycles": 300, "spawn_delay": 2, "max_zombies": 30, "line_death": True},
        {"use_mask": True, "done_on_any": False},
        id="agents-vanish",
    ),
]


def raw_parallel(task, kwargs):
    family, _, name = task.partition("/")
    if family == "mpe2":
        return __import__(f"mpe2.{name}", fromlist=["parallel_env"]).parallel_env(**kwargs)
    return pettingzoo.make("parallel", task, **kwargs)


def entry(td, group, index, key):
    value = td[group, key]
    return value if index is None else value[index]


def members(env):
    """(group, index in it or None, agent) of each agent."""
    assert env.n_agents == len(env.pettingzoo_env.possible_agents)
    for group, agents in env.group_map.items():
        stacked = env.full_reward_spec[group, "reward"].ndim == 2
        for index, agent in enumerate(agents):
            yield group, index if stacked else None, agent


@pytest.mark.parametrize(("task", "kwargs", "ours"), CASES)
def test_a_thousand_steps_are_those_of_the_library(task, kwargs, ours):
    env, reference = PettingZooEnv(task, parallel=True, **ours, **kwargs), raw_parallel(task, kwargs)
    env.set_seed(3)
    seen, _ = reference.reset(seed=3)
    root, vanished, ends = env.reset(), 0, 0
    generator = torch.Generator().manual_seed(0)
    for _ in range(1000):
        actions = env.full_action_spec.rand(generator=generator)
        stepped, following = env.step_and_maybe_reset(root.update(actions))
        places = list(members(env))
        taken = {agent: entry(actions, group, index, "action").numpy() for group, index, agent in places}
        live = list(reference.agents)
        for group, index, agent in places:
            if agent in live:
                np.testing.assert_array_equal(entry(root, group, index, "observation").numpy(), seen[agent])
            if env._use_mask:
                assert entry(root, group, index, "mask").item() == (agent in live)
        seen, rewards, terminated, truncated, _ = reference.step({agent: taken[agent] for agent in live})
        then = stepped["next"]
        over = not reference.agents
        for group, index, agent in places:
            if agent in seen:
                np.testing.assert_array_equal(entry(then, group, index, "observation").numpy(), seen[agent])
            else:
                assert not entry(then, group, index, "observation").any()
            assert entry(then, group, index, "reward").item() == np.float32(rewards.get(agent, 0))
            if agent in terminated:
                assert entry(then, group, index, "terminated").item() == terminated[agent]
                assert entry(then, group, index, "truncated").item() == truncated[agent]
            assert entry(then, group, index, "done").item() == (agent not in reference.agents)
        if "return_state" in ours:
            np.testing.assert_array_equal(then["state"].numpy(), reference.state())
        assert then["done"].item() == over
        vanished += 0 < len(reference.agents) < len(reference.possible_agents)
        ends += over
        root = following
        if over:
            seen, _ = reference.reset()
    assert ends >= 2
    assert bool(vanished) == ("done_on_any" in ours)


@pytest.mark.parametrize("task", ["classic/tictactoe_v3", "classic/leduc_holdem_v4"])
def test_turns_are_those_of_the_library(task):
    pytest.importorskip("rlcard" if "leduc" in task else "pettingzoo")
    base = PettingZooEnv(task, parallel=False, use_mask=True)
    env = TransformedEnv(base, ActionMask(("player", "action"), ("player", "action_mask")))
    reference = pettingzoo.make("aec", task)
    env.set_seed(5)
    reference.reset(seed=5)
    agents = base.group_map["player"]
    torch.manual_seed(0)
    root, ends = env.reset(), 0
    for _ in range(1000):
        turn = agents.index(reference.agent_selection)
        assert root["player", "mask"].nonzero().flatten().tolist() == [turn]
        seen = reference.observe(agents[turn])
        np.testing.assert_array_equal(root["player", "observation"][turn].numpy(), seen["observation"])
        np.testing.assert_array_equal(root["player", "action_mask"][turn].numpy(), seen["action_mask"])
        assert root["player", "action_mask"][1 - turn].all()
        stepped, root = env.step_and_maybe_reset(env.rand_action(root))
        reference.step(stepped["player", "action"][turn].item())
        then, over = stepped["next"], all(reference.terminations.values())
        for index, agent in enumerate(agents):
            np.testing.assert_array_equal(
                then["player", "observation"][index].numpy(), reference.observe(agent)["observation"]
            )
            assert then["player", "reward"][index].item() == np.float32(reference.rewards[agent])
            assert then["player", "terminated"][index].item() == reference.terminations[agent]
        assert then["done"].item() == then["terminated"].item() == over
        if over:
            assert not then["player", "mask"].any()
            ends += 1
            reference.reset()
    assert ends > 50


def test_agents_that_leave():
    env = PettingZooWrapper(Race(), use_mask=True, done_on_any=False, return_state=True)
    data = env.rollout(
        10, actions=env.full_action_spec.zero().set(("a", "action"), torch.ones(2, dtype=torch.int64)).expand(10)
    )
    assert data.batch_size == (4,)
    then = data["next"]
    assert data["a", "mask"].tolist() == [[True, True], [True, True], [False, True], [False, True]]
    assert then["a", "observation"].squeeze(-1).tolist() == [[1, 1], [2, 2], [0, 3], [0, 4]]
    assert then["a", "reward"].squeeze(-1).tolist() == [[1, 1], [1, 1], [0, 1], [0, 1]]
    assert then["a", "terminated"].squeeze(-1).tolist() == [[False, False], [True, False], [True, False], [True, False]]
    assert then["a", "done"].squeeze(-1).tolist() == [[False, False], [True, False], [True, False], [True, True]]
    assert then["truncated"].flatten().tolist() == [False, False, False, True]  # not all have terminated
    assert not then["terminated"].any()
    assert then["state"][:, 0].tolist() == [1, 2, 3, 4]


def test_legal_actions_may_be_reported_in_info():
    env = PettingZooWrapper(Masked(), use_mask=True, done_on_any=False)
    data = env.rollout(10)
    legal = [[True, False, False], [False, True, False], [False, False, True]]
    assert data["a", "action_mask"][:3, 1].tolist() == legal
    assert data["a", "action_mask"][2, 0].all()  # it has left
    masked = TransformedEnv(PettingZooWrapper(Masked()), ActionMask(("a", "action"), ("a", "action_mask")))
    assert masked.rollout(10)["a", "action"].tolist() == [[0, 0], [1, 1]]


def test_masks_of_several_choices_list_the_classes_one_choice_after_the_other():
    class Levers(Race):
        def action_space(self, agent):
            return gym.spaces.MultiDiscrete([2, 3])

        def _infos(self):
            mask = [*(np.arange(2) == self.count % 2), *(np.arange(3) == self.count)]
            return {agent: {"action_mask": np.array(mask)} for agent in self.possible_agents}

        def reset(self, seed=None, options=None):
            seen, _ = super().reset(seed)
            return seen, self._infos()

        def step(self, actions):
            for agent, action in actions.items():
                assert self._infos()[agent]["action_mask"][[action[0], 2 + action[1]]].all()
            return *super().step({agent: action[0] for agent, action in actions.items()})[:4], self._infos()

    base = PettingZooWrapper(Levers(), categorical_actions=True)
    env = TransformedEnv(base, ActionMask(("a", "action"), ("a", "action_mask")))
    data = env.rollout(2)
    assert data["a", "action_mask"][:, 0].int().tolist() == [[1, 0, 1, 0, 0], [0, 1, 0, 1, 0]]
    assert data["a", "action"].tolist() == [[[0, 0], [0, 0]], [[1, 1], [1, 1]]]


@pytest.mark.parametrize("lacking", ["speed", "action_mask"])
def test_an_observation_of_an_agent_that_lacks_an_entry_of_its_space_is_refused_by_key(lacking):
    class Parts(Race):
        def observation_space(self, agent):
            return gym.spaces.Dict(
                place=gym.spaces.Box(-1, 1, (1,)),
                speed=gym.spaces.Box(-1, 1, (1,)),
                action_mask=gym.spaces.MultiBinary(3),
            )

        def _seen(self):
            seen = {
                agent: {**self.observation_space(agent).sample(), "action_mask": np.ones(3, np.int8)}
                for agent in self.agents
            }
            if self.count:
                del seen["a_1"][lacking]
            return seen

    env = PettingZooWrapper(Parts())
    root = env.rand_action(env.reset())
    with pytest.raises(SpecError, match=rf"the observation of a_1 in PettingZooWrapper lacks '{lacking}', it has"):
        env.step(root)


@pytest.mark.parametrize("info", [{}, None])
def test_an_info_that_lacks_the_mask_is_refused_with_the_agent(info):
    class Forgetful(Masked):
        def step(self, actions):
            *rest, infos = super().step(actions)
            return *rest, {name: found for name, found in {**infos, "a_1": info}.items() if found is not None}

    env = PettingZooWrapper(Forgetful())
    message = "the info of a_1 in PettingZooWrapper lacks .action_mask., which its reset had"
    with pytest.raises(SpecError, match=message):
        env.step(env.rand_action(env.reset()))


def test_the_first_agent_that_is_done_ends_the_episode_by_default():
    then = PettingZooWrapper(Race()).rollout(10)["next"]
    assert then["done"].flatten().tolist() == [False, True]
    assert then["terminated"][-1]
    assert then["a", "terminated"][-1].flatten().tolist() == [True, False]
    assert then["a", "truncated"][-1].flatten().tolist() == [False, True]  # cut by the end of the episode


def test_an_agent_that_leaves_needs_the_mask():
    env = PettingZooWrapper(Race(), done_on_any=False)
    with pytest.raises(RLError, match="use_mask=True"):
        env.rollout(10)


def test_groups():
    everyone = PettingZooWrapper(Race(), group_map=MarlGroupMapType.ALL_IN_ONE_GROUP)
    assert everyone.full_action_spec["agents", "action"] == Categorical(3, shape=(2,))
    each = PettingZooWrapper(Race(), group_map=MarlGroupMapType.ONE_GROUP_PER_AGENT, categorical_actions=False)
    assert each.full_action_spec["a_1", "action"] == OneHot(3, dtype=torch.int64)
    assert each.rollout(2)["next", "a_1", "reward"].shape == (2, 1)
    assert PettingZooWrapper(Race(), group_map="All_in_one_group").group_map == everyone.group_map
    assert PettingZooWrapper(Race(), group_map="one_group_per_agent").rollout(2)["a_1", "observation"].shape == (2, 1)
    named = PettingZooWrapper(Race(), group_map={"slow": ["a_1"], "fast": ["a_0"]})
    assert named.rollout(2)["slow", "observation"].shape == (2, 1, 1)
    with pytest.raises(SpecError, match=r"different observation spaces.*ONE_GROUP_PER_AGENT"):
        PettingZooWrapper(Race(sizes=[1, 2]))
    assert PettingZooWrapper(Race(sizes=[1, 2]), group_map=MarlGroupMapType.ONE_GROUP_PER_AGENT).rollout(1) is not None


@pytest.mark.parametrize(
    ("group_map", "words"),
    [
        ({"g": ["a_0"]}, "no group for the agent 'a_1'"),
        ({"g": ["a_0", "a_1"], "h": ["a_1"]}, "'a_1' twice, in 'g' and 'h'"),
        ({"g": ["a_0", "a_1", "b"]}, "unknown agent 'b'"),
        ({"g": ["a_0", "a_1"], "h": []}, "no agents in the group 'h'"),
        ({"state": ["a_0", "a_1"]}, "'state', which is the name of another entry"),
        (
            "agents",
            "must be a mapping from groups to lists of agents, or 'all_in_one_group' or 'one_group_per_agent', got 'a",
        ),
        (["a_0", "a_1"], "must be a mapping"),
        ({"": ["a_0", "a_1"]}, "must be a string that is not empty"),
        ({("g", "h"): ["a_0", "a_1"]}, "must be a string that is not empty"),
        ({"g": "a_0", "h": ["a_1"]}, r"a string in the group 'g': write \['a_0'\]"),
    ],
)
def test_wrong_groups_are_refused(group_map, words):
    with pytest.raises(ArgumentError, match=words):
        PettingZooWrapper(Race(), group_map=group_map)


def short(**kwargs):
    return PettingZooEnv("mpe2/simple_spread_v3", max_cycles=5, **kwargs)


@pytest.mark.parametrize(
    "make",
    [
        short,
        lambda: SerialEnv(3, short),
        lambda: short(continuous_actions=True, return_state=True, use_mask=True),
        lambda: short(group_map=MarlGroupMapType.ONE_GROUP_PER_AGENT, categorical_actions=False),
        lambda: PettingZooEnv("rps", parallel=False, use_mask=True, num_actions=3, max_cycles=4),
        lambda: SerialEnv(2, lambda: PettingZooWrapper(Race(), use_mask=True, done_on_any=False)),
    ],
    ids=["one", "three", "continuous", "each", "turns", "leaving"],
)
def test_conformance(make):
    check_env(make, steps=30)


def test_episodes_of_several_end_one_by_one():
    lengths = iter([2, 3])
    env = SerialEnv(2, lambda: PettingZooWrapper(Race(ends=[next(lengths)] * 2)))
    data = env.rollout(6, break_when_any_done=False)
    assert data["next", "a", "observation"][:, :, 0, 0].tolist() == [[1, 2, 1, 2, 1, 2], [1, 2, 3, 1, 2, 3]]
    assert data["a", "observation"][:, :, 0, 0].tolist() == [[0, 1, 0, 1, 0, 1], [0, 1, 2, 0, 1, 2]]


def test_a_collector_runs():
    collectors = pytest.importorskip("rl.collectors")
    batch = collectors.Collector(SerialEnv(2, short), frames_per_batch=40).collect()
    assert batch["collector", "traj_ids"].max() == 7
    assert batch["next", "agent", "reward"].shape == (2, 20, 3, 1)


def test_pixels():
    data = short(from_pixels=True).rollout(2)
    assert data["pixels"].shape == (2, 700, 700, 3)
    with pytest.raises(ArgumentError, match="render_mode='rgb_array'"):
        PettingZooWrapper(PettingZooEnv("mpe2/simple_spread").pettingzoo_env, from_pixels=True)


def test_ids():
    full = PettingZooEnv("mpe2/simple_v3").task
    assert [PettingZooEnv(name).task for name in ("simple_v3", "mpe2/simple", "simple", "simple-v3")] == [full] * 4
    assert {"classic/chess_v6", full} <= set(PettingZooEnv.available_envs)
    with pytest.raises(UnknownComponentError, match=r"'simple_spred'\. Did you mean 'mpe2/simple_spread_v3'"):
        PettingZooEnv("simple_spred")
    with pytest.raises(RLError, match="only with turns: pass parallel=False"):
        PettingZooEnv("chess")


def test_errors_say_what_to_do(monkeypatch):
    with pytest.raises(ArgumentError, match="take turns: pass use_mask=True"):
        PettingZooEnv("tictactoe", parallel=False)
    with pytest.raises(ArgumentError, match="pettingzoo.make"):  # noqa: RUF043
        PettingZooWrapper(3)
    with pytest.raises(ArgumentError, match="connect_four_v3 has no state: leave return_state out"):
        PettingZooEnv("connect_four", parallel=False, use_mask=True, return_state=True)
    with pytest.raises(RLError, match=r"seed must be an integer, got 2\.5"):
        PettingZooWrapper(Race(), seed=2.5)
    env = PettingZooWrapper(Race())
    with pytest.raises(SpecError, match="not in its spec"):
        env.step(env.reset().set(("a", "action"), torch.tensor([0, 7])))
    ended = PettingZooWrapper(Race(ends=[1, 1]))
    with pytest.raises(RLError, match="the episode is over"):
        ended.rand_step(ended.step_mdp(ended.rand_step()))
    monkeypatch.setitem(sys.modules, "pettingzoo.classic.chess.chess", None)
    with pytest.raises(MissingExtraError, match=r'pip install "pettingzoo\[classic\]"'):
        PettingZooEnv("chess", parallel=False, use_mask=True)
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    with pytest.raises(MissingExtraError, match=r'pip install "rl-envs\[pettingzoo\]"'):
        PettingZooEnv("mpe2/simple_spread")
