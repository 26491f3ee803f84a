from __future__ import annotations

import pytest
import torch
from torch import nn

from rl.core.tensor_functions import plain_network, run_layers

X = torch.linspace(-1, 1, 12).reshape(4, 3)


def layers(*more):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.LayerNorm(4), nn.Linear(4, 2, bias=False), *more)


class Doubling(nn.Module):
    def __call__(self, x):
        return 2 * x


@pytest.mark.parametrize(
    "more", [(), (nn.ReLU(),), (Doubling(),), (nn.Dropout(0.0),), (nn.Sequential(nn.ELU()),)], ids=str
)
def test_it_gives_what_the_sequence_gives(more):
    network = layers(*more)
    assert torch.equal(run_layers(network, X), network(X))
    assert torch.equal(plain_network(network)(X), network(X))


def test_gradients_are_the_same():
    network = layers()
    run_layers(network, X).sum().backward()
    got = [p.grad.clone() for p in network.parameters()]
    network.zero_grad()
    network(X).sum().backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(got, network.parameters(), strict=True))


@pytest.mark.parametrize("where", ["layer", "network"])
def test_a_hook_that_is_added_later_runs(where):
    network = layers()
    call = plain_network(network)
    before = call(X)
    hooked = network if where == "network" else network[0]
    hooked.register_forward_hook(lambda _, __, out: out + 1)
    assert torch.equal(call(X), network(X))
    assert not torch.equal(call(X), before)


def test_a_hook_on_every_module_runs():
    network, seen = layers(), []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(type(module)))
    try:
        plain_network(network)(X)
    finally:
        handle.remove()
    assert nn.Linear in seen


def test_a_parametrized_layer_and_a_replaced_forward_are_respected():
    network = layers()
    nn.utils.parametrizations.weight_norm(network[0])
    network[1].forward = lambda x: x.relu()
    network[3].forward = lambda x: x.sum(-1, keepdim=True)
    assert torch.equal(run_layers(network, X), network(X))


def test_replaced_parameters_are_used():
    network = layers()
    call = plain_network(network)
    state = {name: torch.zeros_like(value) for name, value in network.state_dict().items()}
    assert torch.equal(
        torch.func.functional_call(Wrapper(call, network), {f"n.{k}": v for k, v in state.items()}, (X,)),
        torch.zeros(4, 2),
    )


class Wrapper(nn.Module):
    def __init__(self, call, network):
        super().__init__()
        self.n, self._call = network, call

    def forward(self, x):
        return self._call(x)


def test_a_subclass_with_its_own_forward_is_called_as_it_is():
    class Mine(nn.Sequential):
        def forward(self, x):
            return x

    network = Mine(nn.Linear(3, 3))
    assert plain_network(network) is network


def test_it_compiles_to_one_graph():
    network = layers()
    compiled = torch.compile(lambda x: run_layers(network, x), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(X), network(X))


@pytest.mark.parametrize("kind", [nn.Tanh, nn.ReLU, nn.Sigmoid])
def test_only_intermediate_results_are_overwritten(kind):
    class Keeping(nn.Module):
        def forward(self, x):
            self.seen, self.copy = x, x.clone()
            return x

    keep = Keeping()
    torch.manual_seed(0)
    network = nn.Sequential(kind(), nn.Linear(3, 4), kind(), kind(), keep, kind(), nn.Linear(4, 4), keep, kind())
    x = X.clone()
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            expected = network(x)
            found = run_layers(network, x)
        assert torch.equal(found, expected)
        assert torch.equal(keep.seen, keep.copy)
        assert torch.equal(x, X)
    frozen = nn.Sequential(nn.Linear(3, 4), kind()).requires_grad_(False)
    leaf = X.clone().requires_grad_()
    (expected,) = torch.autograd.grad(frozen(leaf).sum(), leaf)
    assert torch.equal(torch.autograd.grad(run_layers(frozen, leaf).sum(), leaf)[0], expected)
