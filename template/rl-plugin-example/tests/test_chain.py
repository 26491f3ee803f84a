"""The conformance check of the environment, and values by hand."""

import pytest
import torch
from rl.core.errors import ArgumentError
from rl.testing import check_env

from rl_plugin_example.chain import ChainEnv


@pytest.mark.parametrize("num_envs", [None, 1, 4])
def test_the_environment_keeps_the_protocol(num_envs):
    report = check_env(lambda: ChainEnv(num_envs), time_limit=24)
    assert report.not_exercised == []


def test_the_way_to_the_end():
    env = ChainEnv(length=3, slip=0.0)
    root = env.reset()
    assert root["observation"].tolist() == [1, 0, 0]
    rewards = []
    for position in (1, 2):
        step, root = env.step_and_maybe_reset(root.set("action", torch.tensor(1)))
        assert step["next", "observation"].argmax() == position
        rewards.append(step["next", "reward"].item())
    assert rewards == pytest.approx([-1 / 12, 1 - 1 / 12])
    assert step["next", "terminated"].item()
    assert not step["next", "truncated"].item()
    assert root["observation"].tolist() == [1, 0, 0]  # the episode starts again; its last observation stays in `step`


def test_walking_left_is_truncated():
    env = ChainEnv(length=2, slip=0.0)
    root = env.reset()
    for count in range(8):
        step, root = env.step_and_maybe_reset(root.set("action", torch.tensor(0)))
        assert step["next", "truncated"].item() is (count == 7)
    assert not step["next", "terminated"].item()


def test_only_what_is_marked_is_reset():
    env = ChainEnv(2, slip=0.0)
    step = env.step(env.reset().set("action", torch.tensor([1, 1])))
    root = step["next"].exclude("reward").set("_reset", torch.tensor([True, False]).unsqueeze(-1))
    assert env.reset(root)["observation"].argmax(-1).tolist() == [0, 1]


def test_the_plain_form_gives_the_same_numbers():
    one, other = ChainEnv(3), ChainEnv(3)
    one.set_seed(1), other.set_seed(1)
    root, leaves = one.reset(), other.lowered().reset_leaves()
    for _ in range(30):
        action = torch.randint(2, (3,))
        step, root = one.step_and_maybe_reset(root.set("action", action))
        outcome = other.step_leaves({**leaves, "action": action})
        for key, value in outcome.items():
            assert torch.equal(step["next", key], value)
        following = {key: value for key, value in outcome.items() if key != "reward"}
        leaves = other.reset_leaves(following, outcome["done"])
        assert torch.equal(root["observation"], leaves["observation"])


def test_the_state_continues_exactly():
    env, other = ChainEnv(4), ChainEnv(4)
    env.set_seed(3)
    env.reset()
    env.step_leaves({"action": torch.ones(4, dtype=torch.int64)})
    other.load_state_dict(env.state_dict())
    action = {"action": torch.ones(4, dtype=torch.int64)}
    for _ in range(5):
        assert torch.equal(env.step_leaves(action)["observation"], other.step_leaves(action)["observation"])


@pytest.mark.parametrize("arguments", [{"num_envs": 0}, {"length": 1}, {"slip": 0.5}, {"slip": -0.1}])
def test_what_cannot_be_is_rejected(arguments):
    with pytest.raises(ArgumentError, match="ChainEnv: "):
        ChainEnv(**arguments)
