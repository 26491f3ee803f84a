import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from rl.core.errors import ArgumentError
from rl.modules import MLP, NoisyLazyLinear, NoisyLinear, reset_noise, set_exploration_type

F64 = torch.float64


def test_factorized_noise_has_the_stated_moments():
    torch.manual_seed(0)
    layer = NoisyLinear(3, 2, dtype=F64, std_init=0.5)
    with torch.no_grad():
        layer.weight_sigma.uniform_(0.5, 1.5)
    weights = []
    for _ in range(20_000):
        reset_noise(layer)
        assert torch.linalg.matrix_rank(layer.weight_epsilon) == 1
        weights.append((layer.weight - layer.weight_mu).detach() / layer.weight_sigma.detach())
        biases = layer.bias_epsilon
    noise = torch.stack(weights)
    # f(x)^2 = |x|, whose mean is sqrt(2 / pi); the factors are independent
    assert_close(noise.mean(0), torch.zeros(2, 3, dtype=F64), atol=0.03, rtol=0)
    assert_close(noise.square().mean(0), torch.full((2, 3), 2 / torch.pi, dtype=F64), atol=0.04, rtol=0)
    assert_close((layer.bias - layer.bias_mu) / layer.bias_sigma, biases)


def test_initial_scales_are_those_of_the_paper():
    layer = NoisyLinear(16, 4, std_init=0.5)
    assert_close(layer.weight_sigma.detach(), torch.full((4, 16), 0.5 / 4))
    assert_close(layer.bias_sigma.detach(), torch.full((4,), 0.5 / 2))
    assert layer.weight_mu.abs().max() <= 0.25


def test_noise_is_on_in_training_mode_or_while_exploring():
    x = torch.randn(5, 3)
    layer = NoisyLinear(3, 2)
    mean = nn.functional.linear(x, layer.weight_mu, layer.bias_mu)
    assert (layer(x) != mean).any()
    assert_close(layer(x), layer(x), rtol=0, atol=0)
    assert_close(layer.eval()(x), mean)
    layer = NoisyLinear(3, 2, use_exploration_type=True).eval()
    mean = nn.functional.linear(x, layer.weight_mu, layer.bias_mu)
    for mode, noisy in (("random", True), ("deterministic", False), (None, False)):
        with set_exploration_type(mode):
            assert (layer(x) != mean).any() == noisy


def test_a_lazy_layer_becomes_a_noisy_one():
    net = MLP(out_features=2, num_cells=[8], layer_class=NoisyLinear)
    assert net(torch.zeros(5, 3)).shape == (5, 2)
    assert type(net[0]) is NoisyLinear
    assert net[0].weight_epsilon.any()
    assert net[0].weight_mu.shape == (8, 3)
    assert NoisyLazyLinear(2, bias=False)(torch.zeros(3)).equal(torch.zeros(2))
    with pytest.raises(ArgumentError, match="Linear and NoisyLinear only: pass it for Bilinear"):
        MLP(out_features=2, layer_class=nn.Bilinear)


def test_gradients_reach_means_and_scales_and_noise_is_saved():
    layer = NoisyLinear(3, 2)
    x = torch.randn(5, 3)
    layer(x).sum().backward()
    assert_close(layer.weight_mu.grad, x.sum(0).expand(2, 3))
    assert_close(layer.weight_sigma.grad, x.sum(0) * layer.weight_epsilon)
    assert_close(layer.bias_sigma.grad, 5 * layer.bias_epsilon)
    other = NoisyLinear(3, 2)
    other.load_state_dict(layer.state_dict())
    assert_close(other(x), layer(x))
    twin = copy.deepcopy(layer)
    reset_noise(twin)
    assert (twin(x) != layer(x)).any()


def test_it_compiles_whole_and_sees_new_noise():
    net = MLP(3, 2, [4], layer_class=NoisyLinear)
    x = torch.randn(5, 3)
    compiled = torch.compile(net, fullgraph=True, backend="eager")
    assert_close(compiled(x), net(x))
    net.apply(reset_noise)
    assert_close(compiled(x), net(x))
    torch.compiler.reset()
