import pytest
import torch
from torch import nn
from torch.testing import assert_close

from rl.modules import DdpgCnnActor, DdpgCnnQNet, DdpgMlpActor, DdpgMlpQNet


def layers(net):
    return [layer for layer in net.modules() if isinstance(layer, nn.Linear)]


def test_actor_on_vectors_is_the_network_of_the_paper():
    torch.manual_seed(0)
    net = DdpgMlpActor(2)
    x = torch.randn(3, 5, 4)
    out = net(x)
    first, second, last = layers(net)
    assert_close(out, last(nn.functional.elu(second(nn.functional.elu(first(x))))))
    assert (first.out_features, second.out_features, out.shape) == (400, 300, (3, 5, 2))


def test_the_action_enters_the_critic_after_the_first_layer():
    torch.manual_seed(0)
    net = DdpgMlpQNet({"num_cells": [6]}, {"num_cells": [5], "activation_class": nn.Tanh})
    x, action = torch.randn(3, 4), torch.randn(3, 2)
    out = net(x, action)
    first, second, last = layers(net)
    hidden = nn.functional.elu(first(x))
    assert_close(out, last(second(torch.cat([hidden, action], -1)).tanh()))
    assert [layer.in_features for layer in layers(net)] == [4, 8, 5]


@pytest.mark.parametrize("pooled", [False, True])
def test_networks_on_pixels(pooled):
    torch.manual_seed(0)
    convolutions = {"num_cells": [4, 6], "kernel_sizes": [4, 3], "strides": [2, 1], "paddings": 0}
    kwargs = {"conv_net_kwargs": convolutions, "mlp_net_kwargs": {"num_cells": [8]}, "use_avg_pooling": pooled}
    actor, critic = DdpgCnnActor(2, **kwargs), DdpgCnnQNet(**kwargs)
    pixels, action = torch.randn(2, 3, 3, 12, 12), torch.randn(2, 3, 2)
    out, hidden = actor(pixels)
    assert out.shape == (2, 3, 2)
    flat = pixels.flatten(0, 1)
    for layer in actor.convnet:
        if isinstance(layer, nn.Conv2d):
            flat = nn.functional.elu(layer(flat))
    expected = flat.mean((-2, -1)) if pooled else flat.flatten(1)
    assert_close(hidden.flatten(0, 1), expected)
    assert_close(out, actor.mlp(hidden))
    value = critic(pixels, action)
    assert_close(value, critic.mlp(torch.cat([critic.convnet(pixels), action], -1)))
    assert value.shape == (2, 3, 1)


@pytest.mark.parametrize(
    ("net", "bound"),
    [(DdpgMlpActor(2), 3e-3), (DdpgMlpQNet(), 3e-3), (DdpgCnnActor(2), 3e-4), (DdpgCnnQNet(), 3e-4)],
    ids=lambda x: type(x).__name__,
)
def test_the_last_layer_starts_within_the_bounds_of_the_paper(net, bound):
    last = layers(net)[-1]
    for one in (last.weight, last.bias):
        assert one.abs().max() <= bound
    assert last.weight.abs().max() > 0.9 * bound
