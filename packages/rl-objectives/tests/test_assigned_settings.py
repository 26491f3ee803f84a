"""Settings that are assigned after a loss or updater was made: they are followed, or refused."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, ProbabilisticTensorDictModule, TensorDictModule
from tensordict.nn import ProbabilisticTensorDictSequential as Policy
from torch import nn
from torch.distributions import Independent, Normal

from rl.core.errors import ArgumentError
from rl.objectives import (
    A2CLoss,
    DDPGLoss,
    DQNLoss,
    HardUpdate,
    ImpalaLoss,
    PPOLoss,
    ReinforceLoss,
    SACLoss,
    SoftUpdate,
    TD3Loss,
)


class Joined(nn.Linear):
    def forward(self, *parts):
        return super().forward(torch.cat(parts, -1))


def diagonal_normal(loc, scale):
    return Independent(Normal(loc, scale), 1)


def policy():
    body = nn.Sequential(nn.Linear(3, 4), NormalParamExtractor())
    head = ProbabilisticTensorDictModule(
        ["loc", "scale"], ["action"], distribution_class=diagonal_normal, return_log_prob=True
    )
    return Policy(TensorDictModule(body, ["observation"], ["loc", "scale"]), head)


def deterministic():
    return TensorDictModule(nn.Linear(3, 2), ["observation"], ["action"])


def state_value():
    return TensorDictModule(nn.Linear(3, 1), ["observation"], ["state_value"])


def action_value():
    return TensorDictModule(Joined(5, 1), ["observation", "action"], ["state_action_value"])


def dqn():
    return DQNLoss(TensorDictModule(nn.Linear(3, 2), ["observation"], ["action_value"]), action_space="one-hot")


def sequence():
    """Two episodes of three steps, ``[2, 3]``."""
    done = torch.tensor([False, False, True]).expand(2, 3).unsqueeze(-1).clone()
    observation = torch.randn(2, 4, 3)
    after = TensorDict(
        observation=observation[:, 1:], reward=torch.ones(2, 3, 1), done=done, terminated=done, batch_size=[2, 3]
    )
    action = torch.eye(2)[torch.randint(2, (2, 3))]
    log_prob = torch.zeros(2, 3)
    return TensorDict(
        observation=observation[:, :-1], action=action, action_log_prob=log_prob, next=after, batch_size=[2, 3]
    )


LOSSES = {
    "dqn": dqn,
    "ddpg": lambda: DDPGLoss(deterministic(), action_value()),
    "td3": lambda: TD3Loss(deterministic(), action_value(), bounds=(-1, 1)),
    "sac": lambda: SACLoss(policy(), action_value()),
    "ppo": lambda: PPOLoss(policy(), state_value()),
    "a2c": lambda: A2CLoss(policy(), state_value()),
    "impala": lambda: ImpalaLoss(policy(), state_value()),
    "reinforce": lambda: ReinforceLoss(policy(), state_value()),
}
CHANGED = {"dqn": "loss", "ddpg": "loss_value", "ppo": "loss_critic", "impala": "loss_critic"}


@pytest.mark.parametrize("name", CHANGED)
def test_an_assigned_discount_is_that_of_a_loss_made_with_it(name):
    torch.manual_seed(0)
    loss, key = LOSSES[name](), CHANGED[name]
    loss.make_value_estimator(gamma=0.99)
    batch = sequence()
    before = loss(batch.clone())[key]
    loss.gamma = 0.5
    assigned = loss(batch.clone())[key]
    loss.make_value_estimator(gamma=0.5)
    torch.testing.assert_close(assigned, loss(batch.clone())[key])
    assert not torch.allclose(assigned, before)
    assert loss.gamma == loss.value_estimator.gamma == 0.5


def test_so_is_an_assigned_lambda():
    torch.manual_seed(0)
    loss, batch = LOSSES["ppo"](), sequence()
    loss.make_value_estimator(gamma=0.9, lmbda=0.9)
    loss.lmbda = 0.2
    assigned = loss(batch.clone())["loss_objective"]
    loss.make_value_estimator(gamma=0.9, lmbda=0.2)
    torch.testing.assert_close(assigned, loss(batch.clone())["loss_objective"])


@pytest.mark.parametrize("value", [1.5, "high", True])
def test_a_discount_out_of_range_is_refused(value):
    loss = dqn()
    with pytest.raises(ArgumentError, match="DQNLoss: gamma must be"):
        loss.gamma = value
    assert loss.gamma == 0.99


@pytest.mark.parametrize(
    ("name", "setting", "message"),
    [
        ("dqn", "lmbda", r"a TD0Estimator, without lmbda. Call make_value_estimator\(value_type, lmbda=...\)"),
        ("ppo", "gamma", r"no value estimator. Call make_value_estimator\(value_type, gamma=...\)"),
        ("dqn", "delay_value", "Create a new DQNLoss"),
        ("ddpg", "delay_value", "Create a new DDPGLoss"),
        ("ddpg", "delay_actor", "Create a new DDPGLoss"),
        ("td3", "delay_qvalue", "Create a new TD3Loss"),
        ("sac", "delay_qvalue", "Create a new SACLoss"),
        ("reinforce", "delay_value", "Create a new ReinforceLoss"),
        ("ppo", "entropy_bonus", "Assign entropy_coeff"),
        ("a2c", "entropy_bonus", "Assign entropy_coeff"),
        ("impala", "entropy_bonus", "Assign entropy_coeff"),
    ],
)
def test_a_setting_that_a_loss_would_ignore_is_refused(name, setting, message):
    loss = LOSSES[name]()
    with pytest.raises(AttributeError, match=message):
        setattr(loss, setting, False)


@pytest.mark.parametrize(("setting", "value", "share"), [("tau", 0.5, 0.5), ("eps", 0.75, 0.25)])
def test_an_assigned_share_of_a_soft_update_is_followed(setting, value, share):
    loss = dqn()
    updater = SoftUpdate(loss, tau=0.1)
    nn.init.ones_(loss.value_network.module.weight)
    nn.init.zeros_(loss.target_value_network.module.weight)
    setattr(updater, setting, value)
    updater.step()
    torch.testing.assert_close(loss.target_value_network.module.weight, torch.full((2, 3), share))
    assert (updater.tau, updater.eps) == (share, 1 - share)
    with pytest.raises(ArgumentError, match=f"SoftUpdate: {setting} must be"):
        setattr(updater, setting, 7)


def test_an_assigned_interval_of_a_hard_update_is_followed():
    loss = dqn()
    updater = HardUpdate(loss)
    updater.value_network_update_interval = 2
    nn.init.ones_(loss.value_network.module.weight)
    updater.step()
    assert not torch.equal(loss.target_value_network.module.weight, torch.ones(2, 3))
    updater.step()
    assert torch.equal(loss.target_value_network.module.weight, torch.ones(2, 3))
    with pytest.raises(ArgumentError, match="value_network_update_interval"):
        updater.value_network_update_interval = 0
