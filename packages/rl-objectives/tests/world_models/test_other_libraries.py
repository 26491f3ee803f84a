"""Losses of world models against numbers of TorchRL and sheeprl; `dreamer_fixtures.py` of rl-modules wrote them."""

import json
from pathlib import Path

import pytest
import torch

from rl.objectives import LaProp
from rl.objectives.functional import categorical_kl_balanced, categorical_kl_terms, lambda_return

DATA = json.loads((Path(__file__).parent / "dreamer.json").read_text())
close = torch.testing.assert_close


def logits(data):
    return (torch.tensor(data[name], requires_grad=True) for name in ("posterior", "prior"))


def test_both_divergences_and_their_gradients_are_those_of_torchrl():
    data = DATA["kl"]
    posterior, prior = logits(data)
    dynamics, representation = (term.mean() for term in categorical_kl_terms(posterior, prior, free_nats=0.0))
    close(torch.stack((dynamics, representation)), torch.tensor(data["terms"]))
    close(torch.autograd.grad(dynamics, prior)[0], torch.tensor(data["prior_grad"]))
    close(torch.autograd.grad(representation, posterior)[0], torch.tensor(data["posterior_grad"]))
    free = [term.mean() for term in categorical_kl_terms(posterior, prior, free_nats=1.0)]
    close(torch.stack(free), torch.tensor(data["terms_free"]))


def test_the_balanced_divergence_is_a_sum_over_categoricals_where_torchrl_has_their_mean():
    data = DATA["kl"]
    posterior, prior = logits(data)
    count = posterior.shape[-2]
    close(categorical_kl_balanced(posterior, prior).mean() / count, torch.tensor(data["balanced"]))
    # DreamerV2, algorithm 2, has no free nats; TorchRL clips each categorical, DreamerV3 clips the sum.
    ours = categorical_kl_balanced(posterior, prior, free_nats=1.0).mean() / count
    assert abs(ours.item() - data["balanced_free"]) > 0.1


@pytest.mark.parametrize("library", ["torchrl", "sheeprl"])
def test_lambda_returns_with_ends_inside_are_those_of_both(library):
    """Theirs begin with the outcome of the second row."""
    data = DATA["returns"][library]
    time_dim = 0 if library == "sheeprl" else 1
    reward, bootstrap, last, terminal = (
        torch.tensor(data[name], dtype=torch.float32).narrow(time_dim, 1, 5)
        for name in ("reward", "bootstrap", "last", "terminal")
    )
    found = lambda_return(reward, bootstrap, last, terminal, data["gamma"], data["lmbda"], time_dim)
    close(found.squeeze(-1) if library == "torchrl" else found, torch.tensor(data["returns"]))


def steps(data, count):
    weights = [torch.nn.Parameter(torch.tensor(weight)) for weight in data["weights"]]
    optimizer = LaProp(weights, lr=data["lr"], warmup=data["warmup"])
    for grads in data["grads"][:count]:
        for weight, grad in zip(weights, grads, strict=True):
            weight.grad = torch.tensor(grad)
        optimizer.step()
        yield [weight.detach().clone() for weight in weights]


def test_steps_of_laprop_with_clipping_are_those_of_sheeprl():
    data = DATA["laprop"][0]
    for found, expected in zip(steps(data, 5), data["after"], strict=True):
        for ours, theirs in zip(found, expected, strict=True):
            close(ours, torch.tensor(theirs))


def test_the_warm_up_of_laprop_is_one_step_ahead_of_that_of_sheeprl():
    """The official implementation, which sheeprl follows, wastes its first step with the learning rate 0."""
    data = DATA["laprop"][1]
    (first,) = steps(data, 1)
    for ours, theirs, start in zip(first, data["after"][0], data["weights"], strict=True):
        assert torch.tensor(theirs).equal(torch.tensor(start))
        close((ours - torch.tensor(start)).abs(), torch.full_like(ours, data["lr"] / data["warmup"]))
