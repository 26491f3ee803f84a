import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torch.testing import assert_close

from rl.core.errors import ArgumentError, ContractError, ShapeError
from rl.modules import DistributionalDQNnet, DuelingCnnDQNet, DuelingMlpDQNet


@pytest.mark.parametrize("shape", [3, (51, 3)], ids=["actions", "atoms"])
@pytest.mark.parametrize("pixels", [False, True], ids=["vectors", "pixels"])
def test_dueling_is_value_plus_centred_advantage(shape, pixels):
    torch.manual_seed(0)
    value = 1 if shape == 3 else (51, 1)
    if pixels:
        net = DuelingCnnDQNet(shape, value, {"num_cells": [4], "kernel_sizes": [3], "strides": [2]})
        x = torch.randn(2, 5, 3, 8, 8)
    else:
        net, x = DuelingMlpDQNet(shape, value, {"num_cells": [8]}, {"num_cells": [6, 6]}), torch.randn(2, 5, 4)
    out = net(x)
    assert out.shape == (2, 5, *((3,) if shape == 3 else shape))
    features = net.features(x)
    advantage = net.advantage(features)
    assert_close(out, net.value(features) + advantage - advantage.mean(-1, keepdim=True))
    assert_close(out.mean(-1, keepdim=True), net.value(features))  # eq. 9: advantages have the mean zero
    assert net.out_features == shape


def widths(net):
    return [layer.out_features for layer in net if isinstance(layer, nn.Linear)]


def test_default_layers_of_dueling_networks_and_what_overrides_them():
    net = DuelingMlpDQNet(3)
    assert (widths(net.features), widths(net.advantage), widths(net.value)) == ([256, 256], [512, 3], [512, 1])
    assert isinstance(net.features[-1], nn.ELU)
    net = DuelingMlpDQNet(3, mlp_kwargs_output={"num_cells": [64, 32], "activation_class": nn.ReLU})
    assert widths(net.advantage) == [64, 32, 3]
    assert isinstance(net.value[1], nn.ReLU)
    assert widths(DuelingCnnDQNet(2, mlp_kwargs={"num_cells": 16}).value) == [16, 1]
    assert next(iter(DuelingCnnDQNet(2, device="meta").parameters())).device.type == "meta"


def test_log_softmax_over_atoms():
    logits = torch.randn(4, 51, 3)
    out = DistributionalDQNnet(in_keys=["logits"], out_keys=["log_probs"])(TensorDict(logits=logits))
    assert_close(out["log_probs"], logits - logits.exp().sum(-2, keepdim=True).log())
    with pytest.raises(ShapeError, match=r"\(3,\).*\[\*B, atoms, n\]"):
        DistributionalDQNnet()(TensorDict(action_value=torch.zeros(3)))
    with pytest.raises(ContractError, match="'action_value'"):
        DistributionalDQNnet()(TensorDict(x=torch.zeros(3)))
    with pytest.raises(ArgumentError, match="one entry for each"):
        DistributionalDQNnet(in_keys=["a", "b"])


def test_a_contradiction_in_the_arguments_of_a_part_is_named():
    with pytest.raises(ArgumentError, match="depth=1 and 2 num_cells"):
        DuelingMlpDQNet(3, mlp_kwargs_output={"num_cells": [4, 4], "depth": 1})
