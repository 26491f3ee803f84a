"""Every policy, critic and recurrent module keeps its promises."""

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import CheckError
from rl.core.testing import check_module
from rl.modules import MLP, GRUModule, LSTMModule, ValueOperator


def test_a_policy_conforms(make_policy, batch, request):
    torch.manual_seed(0)
    if "torch-normal-scored" in request.node.name:  # scores each number by itself, the contract promises one score
        with pytest.raises(CheckError, match=r"'action_log_prob' is declared \[\*B\], it is \[5, 2\]"):
            check_module(make_policy(), batch((5,)))
        return
    assert check_module(make_policy(), batch((5,))).not_exercised == []


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
