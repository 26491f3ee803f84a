"""Every policy, critic and recurrent module keeps its promises."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl.core.errors import ShapeError
from rl.core.specs import Bounded
from rl.modules import MLP, GRUModule, LSTMModule, NormalParamExtractor, ProbabilisticActor, ValueOperator
from rl.testing import check_module


def test_a_policy_conforms(make_policy, batch):
    torch.manual_seed(0)
    assert check_module(make_policy(), batch((5,))).not_exercised == []


@pytest.mark.parametrize("spec", [None, Bounded(-1, 1, (2,))])
def test_one_log_probability_per_number_of_an_action_is_refused(spec, batch):
    net = nn.Sequential(nn.Linear(4, 4), NormalParamExtractor())
    module = TensorDictModule(net, ["observation"], ["loc", "scale"])
    actor = ProbabilisticActor(
        module, ["loc", "scale"], spec=spec, distribution_class=torch.distributions.Normal, return_log_prob=True
    )
    for _ in range(2):
        with pytest.raises(ShapeError, match=r"use rl.modules.IndependentNormal, or torch.distributions.Independent"):
            actor(batch((5,)))
    if spec is not None:
        with pytest.raises(ShapeError, match="one log-probability for each number"):
            actor.lowered()(torch.zeros(5, 4))


@pytest.mark.parametrize("kind", [LSTMModule, GRUModule])
def test_a_recurrent_module_conforms_step_by_step(kind):
    module = kind(input_size=4, hidden_size=3, in_key="observation", out_key="memory")
    td = TensorDict(observation=torch.randn(5, 4), is_init=torch.zeros(5, 1, dtype=torch.bool), batch_size=[5])
    for key in module.in_keys:
        if key not in td.keys(include_nested=True):
            td[key] = torch.randn(5, 1, 3)
    assert check_module(module, td).not_exercised == []


def test_a_critic_conforms(batch):
    torch.manual_seed(0)
    assert check_module(ValueOperator(MLP(4, 1, [8])), batch((5,))).not_exercised == []
