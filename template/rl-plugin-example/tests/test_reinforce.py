"""The conformance check of the loss, and values by hand."""

import pytest
import torch
from rl.core.errors import ArgumentError, ContractError
from rl.testing import check_loss
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import nn

from rl_plugin_example.reinforce import ReinforceLoss, policy_gradient


def make_actor(length=6):
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


def test_the_loss_keeps_the_protocol(batch):
    torch.manual_seed(0)
    check_loss(ReinforceLoss(make_actor()), batch, frozen=["advantage"])


def test_the_loss_by_hand():
    out = policy_gradient(torch.tensor([-0.5, -2.0]), torch.tensor([2.0, -1.0]))
    torch.testing.assert_close(out, torch.tensor([1.0, -2.0]))


def test_a_missing_advantage_is_named_with_the_remedy(batch):
    with pytest.raises(ContractError, match=r"ReinforceLoss reads 'advantage'.*GAE"):
        ReinforceLoss(make_actor())(batch.exclude("advantage"))


def test_a_negative_entropy_coeff_is_rejected():
    with pytest.raises(ArgumentError, match="ReinforceLoss: entropy_coeff"):
        ReinforceLoss(make_actor(), entropy_coeff=-1)
