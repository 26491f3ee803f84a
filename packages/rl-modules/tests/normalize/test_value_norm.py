import pytest
import torch
from torch import nn
from torch.testing import assert_close

from rl.core.errors import ArgumentError, ShapeError
from rl.modules import PopArtValueNorm, RunningValueNorm

F64 = torch.float64


def batches(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, 5, 2, generator=generator, dtype=F64) * n + 1e3 for n in (3, 1, 7, 4)]


def test_running_statistics_are_those_of_all_targets():
    norm = RunningValueNorm(2).double()
    for batch in batches():
        norm.update(batch)
    rows = torch.cat(batches()).flatten(0, 1)
    assert_close(norm.mean, rows.mean(0))
    assert_close(norm.var, rows.var(0, correction=0))
    assert_close(norm.normalize(rows).mean(0), torch.zeros(2, dtype=F64), atol=1e-9, rtol=0)
    assert_close(norm.denormalize(norm.normalize(rows)), rows)
    assert norm.count == len(rows)


def test_moving_averages_are_those_of_the_paper_without_their_first_bias():
    norm = PopArtValueNorm(2, beta=0.7).double()
    first, second, weight = torch.zeros(2, dtype=F64), torch.zeros(2, dtype=F64), 0.0
    for batch in batches():
        norm.update(batch)
        rows = batch.flatten(0, 1)
        first, second = 0.7 * first + 0.3 * rows.mean(0), 0.7 * second + 0.3 * rows.square().mean(0)
        weight = 0.7 * weight + 0.3
        assert_close(norm.mean, first / weight)
        assert_close(norm.var, second / weight - (first / weight).square())


@pytest.mark.parametrize("shape", [1, (2, 3)])
def test_outputs_are_preserved(shape):
    torch.manual_seed(0)
    norm = PopArtValueNorm(shape, beta=0.5).double()
    count = norm.shape.numel()
    critic, x = nn.Linear(4, count, dtype=F64), torch.randn(6, 4, dtype=F64)
    value = lambda: norm.denormalize(critic(x).unflatten(-1, norm.shape))
    before = value().detach()
    for scale in (1.0, 1e4, 1e-2):
        old = critic.weight.detach().clone()
        norm.update(scale * torch.randn(8, *norm.shape, dtype=F64) + 5, critic)
        assert_close(value(), before)
        assert (critic.weight != old).all()
    assert critic.weight.requires_grad


@pytest.mark.parametrize("make", [RunningValueNorm, PopArtValueNorm])
def test_single_precision_far_from_zero_and_a_constant_target(make):
    norm = make(1)
    for _ in range(50):
        norm.update(1e5 + torch.randn(200, 1))
    assert_close(norm.std, torch.ones(1), atol=0.1, rtol=0)
    norm = make(1, epsilon=1e-4)
    norm.update(torch.full((5, 1), 3.0))
    assert_close(norm.normalize(torch.tensor([3.0])), torch.zeros(1))
    assert_close(norm.std, torch.full((1,), 0.01))
    value = torch.ones(3, 1, requires_grad=True)
    norm.denormalize(value).sum().backward()
    assert_close(value.grad, torch.full((3, 1), 0.01))


@pytest.mark.parametrize("make", [RunningValueNorm, PopArtValueNorm])
def test_statistics_are_saved_and_start_as_identity(make):
    norm, other = make(1), make(1)
    x = torch.randn(4, 1)
    assert_close(norm.normalize(x), x)
    norm.update(3 * x)
    other.load_state_dict(norm.state_dict())
    norm.update(x)
    other.update(x)
    assert_close(other.normalize(x), norm.normalize(x))
    assert list(norm.parameters()) == []


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: RunningValueNorm(0), ArgumentError, "shape"),
        (lambda: RunningValueNorm(1, epsilon=0.0), ArgumentError, "epsilon must be above 0, got 0.0"),
        (lambda: PopArtValueNorm(1, beta=1.0), ArgumentError, "beta must be .*, got 1.0"),
        (lambda: RunningValueNorm(2).update(torch.zeros(3, 1)), ShapeError, r"\[2\]\], got \(3, 1\)"),
        (lambda: RunningValueNorm(2).normalize(torch.zeros(())), ShapeError, r"got \(\)"),
        (lambda: RunningValueNorm(2).update(torch.zeros(0, 2)), ShapeError, "no targets"),
        (lambda: PopArtValueNorm(1).update(torch.zeros(3, 1), nn.Linear(4, 2)), ShapeError, "1 outputs"),
        (lambda: PopArtValueNorm(1).update(torch.zeros(3, 1), nn.Linear(4, 1, bias=False)), ShapeError, "a bias"),
    ],
)
def test_what_does_not_fit_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
