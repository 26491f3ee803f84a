"""What "compatible" means: the checks that rl-core ships, and values by hand."""

import pytest
import torch
from rl_plugin_example import plugin
from rl_plugin_example.chain import ChainEnv
from rl_plugin_example.reinforce import ReinforceLoss, policy_gradient
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import nn

from rl.core.errors import ContractError, RLError
from rl.core.registry import Registry
from rl.testing import check_env, check_loss, check_plugin


def make_actor(length: int = 6) -> ProbabilisticTensorDictSequential:
    return ProbabilisticTensorDictSequential(
        TensorDictModule(nn.Linear(length, 2), in_keys=["observation"], out_keys=["logits"]),
        ProbabilisticTensorDictModule(
            in_keys=["logits"],
            out_keys=["action"],
            distribution_class=torch.distributions.Categorical,
            return_log_prob=True,
        ),
    )


@pytest.fixture
def batch():
    torch.manual_seed(0)
    return TensorDict(
        observation=torch.rand(32, 6), action=torch.randint(2, (32,)), advantage=torch.randn(32, 1), batch_size=[32]
    )


@pytest.mark.parametrize("num_envs", [None, 1, 4])
def test_the_environment_keeps_the_protocol(num_envs):
    report = check_env(lambda: ChainEnv(num_envs), time_limit=24)
    assert report.not_exercised == []


def test_the_loss_keeps_the_protocol(batch):
    torch.manual_seed(0)
    check_loss(ReinforceLoss(make_actor()), batch, frozen=["advantage"])


def test_the_plugin_as_a_whole():
    """Declaration, targets, and what can be made without arguments; the loss needs a batch, see above."""
    report = check_plugin("rl_plugin_example.plugin", "rl-plugin-example")
    assert any("check_loss" in sentence for sentence in report.not_exercised)


def test_both_are_found_by_name():
    registry = Registry()  # an empty one, so that this passes without an installation, too
    registry.register(plugin, "example")
    assert registry.load("env", "example/chain") is ChainEnv
    assert registry.load("loss", "example-reinforce") is ReinforceLoss


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
    root = step["next"].exclude("reward").set("_reset", torch.tensor([[True], [False]]))
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
def test_what_cannot_be_is_refused(arguments):
    with pytest.raises(RLError, match="ChainEnv got"):
        ChainEnv(**arguments)


def test_the_loss_by_hand():
    out = policy_gradient(torch.tensor([-0.5, -2.0]), torch.tensor([2.0, -1.0]))
    torch.testing.assert_close(out, torch.tensor([1.0, -2.0]))


def test_a_missing_advantage_is_named_with_the_remedy(batch):
    with pytest.raises(ContractError, match=r"ReinforceLoss reads 'advantage'.*GAE"):
        ReinforceLoss(make_actor())(batch.exclude("advantage"))


def test_a_negative_entropy_coeff_is_refused():
    with pytest.raises(RLError, match="entropy_coeff=-1"):
        ReinforceLoss(make_actor(), entropy_coeff=-1)


def test_it_learns():
    """REINFORCE with the return of each step as advantage reaches the end nearly always."""
    torch.manual_seed(0)
    env, actor = ChainEnv(16, length=4), make_actor(4)
    env.set_seed(0)
    loss, optimizer = ReinforceLoss(actor), torch.optim.Adam(actor.parameters(), lr=0.1)
    for _ in range(30):
        root, steps = env.reset(), []
        for _ in range(env.max_steps):
            with torch.no_grad():
                step, root = env.step_and_maybe_reset(actor(root))
            steps.append(step)
        data = torch.stack(steps, 1)
        returns = data["next", "reward"].clone()
        for t in range(env.max_steps - 2, -1, -1):
            returns[:, t] += 0.9 * returns[:, t + 1] * ~data["next", "done"][:, t]
        out = loss(data.set("advantage", returns - returns.mean()))
        optimizer.zero_grad()
        (out["loss_objective"] + out["loss_entropy"]).backward()
        optimizer.step()
    ended = data["next", "done"]
    assert data["next", "terminated"][ended].float().mean() > 0.95
    assert ended.float().mean() > 0.2  # about four steps for three states
