"""Helpers of training loops."""

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from rl.core.errors import ArgumentError, ShapeError
from rl.objectives import KLAdaptiveLR, distance_loss, group_optimizers, hold_out_net, hold_out_params


def test_a_network_that_is_held_out_gets_no_gradient_and_is_restored():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    net[0].bias.requires_grad_(False)
    before = [p.requires_grad for p in net.parameters()]
    x = torch.ones(1, 2, requires_grad=True)
    with hold_out_net(net) as held:
        held(x).sum().backward()
    assert [p.requires_grad for p in net.parameters()] == before
    assert all(p.grad is None for p in net.parameters())
    torch.testing.assert_close(x.grad, (net[1].weight @ net[0].weight).detach())
    with pytest.raises(ZeroDivisionError), hold_out_net(net):
        _ = 1 / 0
    assert [p.requires_grad for p in net.parameters()] == before


def test_parameters_that_are_held_out_share_their_memory():
    weight = nn.Parameter(torch.ones(2))
    with hold_out_params([weight]) as (one,), hold_out_params(TensorDict(w=weight)) as td:
        for held in (one, td["w"]):
            assert not held.requires_grad
            assert held.data_ptr() == weight.data_ptr()
    assert weight.requires_grad


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD, torch.optim.RMSprop])
def test_one_optimizer_does_what_two_do(kind):
    def run(joined):
        torch.manual_seed(0)
        nets = [nn.Linear(3, 1), nn.Linear(3, 1)]
        optimizers = [
            kind(net.parameters(), lr=lr, weight_decay=0.1) for net, lr in zip(nets, (1e-1, 1e-2), strict=True)
        ]
        for step in range(4):
            if step == 2 and joined:  # with the state that they have by then
                optimizers = [group_optimizers(*optimizers)]
            for one in optimizers:
                one.zero_grad()
            sum(net(torch.ones(1, 3)).square().sum() for net in nets).backward()
            for one in optimizers:
                one.step()
        return [p.detach() for net in nets for p in net.parameters()]

    torch.testing.assert_close(run(True), run(False))


def test_optimizers_that_do_not_fit_are_refused():
    weight = nn.Parameter(torch.ones(1))
    one = torch.optim.Adam([weight])
    with pytest.raises(ArgumentError, match="of one class, got Adam, SGD"):
        group_optimizers(one, torch.optim.SGD([nn.Parameter(torch.ones(1))]))
    with pytest.raises(ArgumentError, match="got none"):
        group_optimizers()
    with pytest.raises(ArgumentError, match="a parameter in two optimizers"):
        group_optimizers(one, torch.optim.Adam([weight]))


def test_the_distance_has_the_name_and_the_arguments_of_torchrl():
    one, two = torch.tensor([3.0, 0.5]), torch.tensor([1.0, 0.0])
    assert distance_loss(one, two, loss_function="smooth_l1", strict_shape=True).tolist() == [1.5, 0.125]
    for strict in (True, False):
        with pytest.raises(ShapeError, match="would broadcast"):
            distance_loss(one, two.unsqueeze(-1), "l2", strict_shape=strict)
    with pytest.raises(ArgumentError, match=r"loss_function must be .* got 'l3'"):
        distance_loss(one, two, "l3")


def test_the_step_size_follows_the_divergence_within_its_bounds():
    weight = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizer = torch.optim.SGD([{"params": weight[:1], "lr": 1e-3}, {"params": weight[1:], "lr": 4e-5}], lr=1.0)
    schedule = KLAdaptiveLR(optimizer, target_kl=0.01, factor=2.0, min_lr=3e-5, max_lr=1.5e-3)
    expected = [
        (0.021, [5e-4, 3e-5]),  # above twice the target
        (0.02, [5e-4, 3e-5]),
        (0.005, [5e-4, 3e-5]),
        (0.0, [5e-4, 3e-5]),  # a policy that did not move
        (torch.tensor(0.004), [1e-3, 6e-5]),
        (1e-9, [1.5e-3, 1.2e-4]),
    ]
    for kl, rates in expected:
        schedule.step(kl)
        assert schedule.get_last_lr() == pytest.approx(rates)
    optimizer.param_groups[1]["lr"] = 1e-6  # out of the range, as during a warmup
    for kl in (0.01, 0.0):
        schedule.step(kl)
        assert schedule.get_last_lr() == [1.5e-3, 1e-6]
    schedule.step(1e-9)
    other = KLAdaptiveLR(optimizer, 0.01)
    other.load_state_dict(schedule.state_dict())
    assert other.last_kl == 1e-9
    with pytest.raises(ArgumentError, match="divergence of nan"):
        schedule.step(float("nan"))


def test_a_step_size_that_is_a_tensor_is_changed_in_place():
    rate = torch.tensor(1e-3)  # a compiled or captured step reads it
    schedule = KLAdaptiveLR(torch.optim.Adam([nn.Parameter(torch.zeros(1))], lr=rate), 0.01, factor=2.0)
    schedule.step(1.0)
    assert schedule.optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == pytest.approx(5e-4)


@pytest.mark.parametrize("given", [{"target_kl": 0}, {"factor": 1.0}, {"min_lr": 0.1}, {"max_lr": float("inf")}])
def test_an_adaptive_step_size_refuses_what_is_out_of_range(given):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    with pytest.raises(
        ArgumentError, match=f"KLAdaptiveLR: {next(iter(given)) if 'min_lr' not in given else 'max_lr'} must be"
    ):
        KLAdaptiveLR(optimizer, **{"target_kl": 0.01, **given})
