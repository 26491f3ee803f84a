from __future__ import annotations

import sys

import pytest
import torch

from rl.core.errors import ArgumentError, MissingExtraError, RLError, SpecError, UnknownComponentError
from rl.core.specs import Categorical, MultiOneHot, OneHot
from rl.envs import MarlGroupMapType, SerialEnv, VmasEnv, VmasWrapper

# an error for more names than VMAS has
from rl.envs._libraries import unknown_id
from rl.testing import check_env

vmas = pytest.importorskip("vmas")
EACH = MarlGroupMapType.ONE_GROUP_PER_AGENT


CASES = {
    "one-group": ("balance", {}),
    "two-groups": ("simple_tag", {}),
    "group-per-agent": ("simple_speaker_listener", {"group_map": EACH}),
    "discrete": ("navigation", {"continuous_actions": False}),
    "multi-discrete": ("simple_reference", {"continuous_actions": False, "multidiscrete_actions": True}),
}
CHEAPEST = "group-per-agent"  # takes the thousand steps in the quick tests, too


@pytest.mark.parametrize(
    ("scenario", "kwargs", "steps"),
    [
        *(pytest.param(*case, 1000 if name == CHEAPEST else 200, id=name) for name, case in CASES.items()),
        *(
            pytest.param(*case, 1000, id=f"{name}, thousand steps", marks=pytest.mark.slow)
            for name, case in CASES.items()
            if name != CHEAPEST
        ),
    ],
)
def test_steps_are_those_of_the_library(scenario, kwargs, steps):
    count = 5
    env = VmasEnv(scenario, count, max_steps=30, **kwargs)
    kwargs = {key: value for key, value in kwargs.items() if key != "group_map"}
    raw = vmas.make_env(scenario, count, max_steps=30, terminated_truncated=True, **kwargs)
    env.set_seed(3)
    raw.seed(3)
    root, seen = env.reset(), raw.reset()
    torch.manual_seed(0)
    assert env.n_agents == raw.n_agents
    order = [agent.name for agent in raw.agents]
    places = {name: (group, index) for group, names in env.group_map.items() for index, name in enumerate(names)}

    def of(td, name, key):
        group, index = places[name]
        stacked = env.full_reward_spec[group, "reward"].ndim == 3
        return td[group, key][:, index] if stacked else td[group, key]

    ends = 0
    for step in range(steps):
        for name, value in zip(order, seen, strict=True):
            assert torch.equal(of(root, name, "observation"), value)
        stepped = env.step(env.rand_action(root))
        actions = [of(stepped, name, "action").clone() for name in order]
        seen, rewards, terminated, truncated, _ = raw.step(actions)
        then = stepped["next"]
        for name, value, reward in zip(order, seen, rewards, strict=True):
            assert torch.equal(of(then, name, "observation"), value)
            assert torch.equal(of(then, name, "reward").flatten(), reward)
        assert torch.equal(then["terminated"].flatten(), terminated)
        assert torch.equal(then["truncated"].flatten(), truncated)
        assert torch.equal(then["done"].flatten(), terminated | truncated)
        root = env.step_mdp(stepped)
        over = then["done"].flatten()
        if step % 7 == 3:  # elements get out of step
            over = over | (torch.arange(count) == step % count)
        if over.all():
            root, seen = env.reset(), raw.reset()
        elif over.any():
            for index in over.nonzero().flatten().tolist():
                raw.reset_at(index)
            root = env.reset(root.set("_reset", over.unsqueeze(-1)))
            (seen,) = raw.get_from_scenario(get_observations=True, get_rewards=False, get_infos=False, get_dones=False)
        ends += int(over.sum())
    assert ends > 20


def test_layout():
    env = VmasEnv("simple_tag", 3, seed=0, max_steps=4)
    assert str(env) == (
        "VmasEnv(scenario=simple_tag, groups={'adversary': 3, 'agent': 1}, batch_size=torch.Size([3]), device=None)"
    )
    data = env.rollout(10)
    assert data.batch_size == (3, 4)
    assert data["next", "truncated"][:, -1].all()
    assert data["adversary", "observation"].shape == (3, 4, 3, 16)
    assert data["next", "agent", "reward"].shape == (3, 4, 1, 1)
    single = VmasEnv("simple_tag", 3, group_map=EACH).rollout(2)
    assert single["adversary_1", "action"].shape == (3, 2, 2)
    assert single["next", "adversary_1", "reward"].shape == (3, 2, 1)


def test_infos_are_written_on_request():
    env = VmasEnv("balance", 2, seed=0, info_keys=["pos_rew"])
    data = env.rollout(3)
    assert data["next", "agents", "info", "pos_rew"].shape == (2, 3, 3, 1)
    with pytest.raises(SpecError, match="'info', 'missing'"):
        VmasEnv("balance", 2, info_keys=["missing"])


@pytest.mark.parametrize(
    ("kwargs", "spec"),
    [
        ({}, Categorical(9, shape=(4, 3))),
        ({"categorical_actions": False}, OneHot(9, shape=(4, 3, 9), dtype=torch.int64)),
        (
            {"categorical_actions": False, "multidiscrete_actions": True},
            MultiOneHot([3, 3], shape=(4, 3, 6), dtype=torch.int64),
        ),
    ],
)
def test_discrete_actions(kwargs, spec):
    env = VmasEnv("balance", 4, continuous_actions=False, **kwargs)
    assert env.full_action_spec["agents", "action"] == spec


def test_one_hot_vectors_are_the_integers():
    integers = VmasEnv("balance", 3, continuous_actions=False, seed=1)
    vectors = VmasEnv("balance", 3, continuous_actions=False, categorical_actions=False, seed=1)
    actions = integers.rollout(5)["agents", "action"]
    integers.set_seed(1)
    expected = integers.rollout(5, actions=actions)["next", "agents", "observation"]
    vectors.set_seed(1)
    found = vectors.rollout(5, actions=torch.nn.functional.one_hot(actions, 9))["next", "agents", "observation"]
    assert torch.equal(found, expected)


def test_rewards_are_differentiable_where_vmas_is():
    env = VmasEnv("navigation", 2, seed=0, grad_enabled=True)
    raw = vmas.make_env("navigation", 2, grad_enabled=True)
    action = torch.full((2, 4, 2), 0.3, requires_grad=True)
    total = torch.zeros(())
    root = env.reset()
    for _ in range(3):
        root = env.step(root.set(("agents", "action"), action))
        total = total + root["next", "agents", "reward"].sum()
        root = env.step_mdp(root)
    (gradient,) = torch.autograd.grad(total, action)
    raw.seed(0)
    raw.reset()
    parts = [action[:, index] for index in range(4)]
    expected = sum(torch.stack(raw.step(list(parts))[1]).sum() for _ in range(3))
    assert gradient.abs().sum() > 0
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, action)[0], rtol=0, atol=0)
    assert not VmasEnv("navigation", 2).rollout(2)["next", "agents", "reward"].requires_grad


def test_random_numbers_are_those_of_one_environment():
    one, two = VmasEnv("balance", 2, seed=0), VmasEnv("balance", 2, seed=0)
    torch.manual_seed(5)
    expected, shared = torch.rand(3), vmas.simulator.environment.Environment.vmas_random_state[0].clone()
    torch.manual_seed(5)
    first = one.reset()["agents", "observation"]
    one.reset()
    assert torch.equal(two.reset()["agents", "observation"], first)
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(vmas.simulator.environment.Environment.vmas_random_state[0], shared)
    unseeded = [VmasEnv("balance", 2).reset()["agents", "observation"] for _ in range(2)]
    assert not torch.equal(*unseeded)


def test_a_wrapped_environment_continues():
    raw = vmas.make_env("balance", 2, seed=0)
    env = VmasWrapper(raw)
    assert str(env).startswith("VmasWrapper(scenario=")
    raw.seed(7)
    expected = raw.reset()
    env.set_seed(7)
    assert torch.equal(env.reset()["agents", "observation"], torch.stack(expected, 1))


@pytest.mark.parametrize(
    "make",
    [
        lambda: VmasEnv("balance", 2, max_steps=5),
        lambda: VmasEnv("simple_tag", 2, max_steps=5, group_map=EACH, continuous_actions=False),
        lambda: SerialEnv(2, lambda: VmasEnv("simple", 2, max_steps=5)),
    ],
    ids=["balance", "each", "serial"],
)
def test_conformance(make):
    check_env(make, steps=20, time_limit=5)


def test_a_collector_runs():
    collectors = pytest.importorskip("rl.collectors")
    env = VmasEnv("balance", 4, max_steps=5, seed=0)
    batch = collectors.Collector(env, frames_per_batch=80).collect()
    assert batch["next", "truncated"].sum() >= 16
    assert batch["agents", "observation"].shape == (4, 20, 3, 16)


def test_groups_need_equal_agents():
    with pytest.raises(SpecError, match="'adversary_0' and 'agent_0' of the group 'agents' have different entries"):
        VmasEnv("simple_tag", 2, group_map=MarlGroupMapType.ALL_IN_ONE_GROUP)
    with pytest.raises(ArgumentError, match="no group for the agent 'agent_2'"):
        VmasEnv("balance", 2, group_map={"some": ["agent_0", "agent_1"]})


def test_errors_say_what_to_do(monkeypatch):
    with pytest.raises(UnknownComponentError, match=r"'balanc'\. Did you mean 'balance'"):
        VmasEnv("balanc", 2)
    with pytest.raises(UnknownComponentError, match=r"no environment 'nosuch'\. It has .*balance, .*, wind_flocking$"):
        VmasEnv("nosuch", 2)
    assert unknown_id("EnvPool", "q", map(str, range(151))).endswith(", 115 and 131 more")
    assert "transport" in VmasEnv.available_envs
    with pytest.raises(ArgumentError, match=r"vmas\.make_env"):
        VmasWrapper(3)
    env = VmasEnv("balance", 2, seed=0)
    root = env.reset()
    with pytest.raises(SpecError, match="not in its spec"):
        env.step(root.clone().set(("agents", "action"), torch.full((2, 3, 2), 7.0)))
    with pytest.raises(RLError, match="'_step' excludes some"):
        env.step(env.rand_action(root).set("_step", torch.tensor([True, False])))
    monkeypatch.setitem(sys.modules, "vmas", None)
    with pytest.raises(MissingExtraError, match=r'pip install "rl-envs\[vmas\]"'):
        VmasEnv("balance", 2)
