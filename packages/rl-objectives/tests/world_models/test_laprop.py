"""LaProp against the update of the official implementation, in a plain loop."""

import copy
import math

import pytest
import torch

from rl.core.errors import ArgumentError
from rl.objectives import LaProp


def by_hand(start, gradients, lr, beta1, beta2, eps, clip, floor, warmup):
    """The update of one tensor, as numbers."""
    p, nu, mu = list(start), [0.0] * len(start), [0.0] * len(start)
    for t, grad in enumerate(gradients, 1):
        norm, size = math.sqrt(sum(g * g for g in grad)), math.sqrt(sum(x * x for x in p))
        factor = 1 / max(1.0, norm / (clip * max(floor, size)))
        for i, g in enumerate(grad):
            g = g * factor  # noqa: PLW2901
            nu[i] = beta2 * nu[i] + (1 - beta2) * g * g
            scaled = g / (math.sqrt(nu[i] / (1 - beta2**t)) + eps)
            mu[i] = beta1 * mu[i] + (1 - beta1) * scaled
        for i in range(len(p)):
            p[i] -= lr * min(1.0, t / warmup) * mu[i] / (1 - beta1**t)
    return p


def test_the_update_is_that_of_a_loop_with_clipping_of_each_tensor():
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(4, dtype=torch.float64) * scale) for scale in (1.0, 1e-5, 10.0)]
    starts = [one.tolist() for one in params]
    optimizer = LaProp(params, lr=0.01, betas=(0.8, 0.95), warmup=3)
    grads = [[torch.randn(4, dtype=torch.float64) for _ in range(5)] for _ in params]
    for t in range(5):
        for one, column in zip(params, grads, strict=True):
            one.grad = column[t].clone()
        optimizer.step()
    for one, start, column in zip(params, starts, grads, strict=True):
        expected = by_hand(start, [g.tolist() for g in column], 0.01, 0.8, 0.95, 1e-20, 0.3, 1e-3, 3)
        torch.testing.assert_close(one.data, torch.tensor(expected, dtype=torch.float64))


def test_pitfall_8_the_norm_is_that_of_the_whole_tensor_and_not_of_rows():
    weight = torch.nn.Parameter(torch.ones(2, 2))
    weight.grad = torch.tensor([[100.0, 0.0], [0.1, 0.0]])
    optimizer = LaProp([weight], warmup=0)
    optimizer.step()
    clipped = optimizer.state[weight]["mean_square"].sqrt() / math.sqrt(1e-3)
    torch.testing.assert_close(clipped.norm().item(), 0.3 * 2.0, rtol=1e-3, atol=0)
    torch.testing.assert_close((clipped[1, 0] / clipped[0, 0]).item(), 1e-3, rtol=1e-3, atol=0)
    assert torch.equal(weight.grad, torch.tensor([[100.0, 0.0], [0.1, 0.0]]))


def test_a_restored_optimizer_goes_on_exactly():
    torch.manual_seed(0)

    def steps(model, optimizer, count):
        for _ in range(count):
            optimizer.zero_grad()
            model(torch.ones(3, 4)).square().sum().backward()
            optimizer.step()

    model = torch.nn.Linear(4, 2)
    optimizer = LaProp(model.parameters(), lr=0.01, warmup=10)
    steps(model, optimizer, 3)
    other = copy.deepcopy(model)
    resumed = LaProp(other.parameters())
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    steps(model, optimizer, 4)
    steps(other, resumed, 4)
    torch.testing.assert_close(list(other.parameters()), list(model.parameters()), rtol=0, atol=0)


def test_defaults_are_those_of_the_paper_and_bad_values_are_refused():
    (group,) = LaProp([torch.nn.Parameter(torch.ones(1))]).param_groups
    found = {key: group[key] for key in ("lr", "betas", "eps", "clip", "clip_floor", "warmup")}
    wanted = {"lr": 4e-5, "betas": (0.9, 0.999), "eps": 1e-20, "clip": 0.3, "clip_floor": 1e-3, "warmup": 1000}
    assert found == wanted
    for options in ({"lr": -1.0}, {"betas": (1.0, 0.9)}, {"warmup": 0.5}, {"clip": math.nan}):
        with pytest.raises(ArgumentError, match="LaProp"):
            LaProp([torch.nn.Parameter(torch.ones(1))], **options)


def test_parameters_without_gradient_and_closures():
    used, unused = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))
    optimizer = LaProp([used, unused], lr=0.1, warmup=0)

    def closure():
        loss = used.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) == 1
    assert used.item() == pytest.approx(0.9)
    assert unused.item() == 1.0
