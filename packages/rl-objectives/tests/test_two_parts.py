"""Values before and after a step: in one call of the network for both, or in two where that cannot change them."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl.objectives._networks import NetworkCall
from rl.objectives.value import GAE

KEYS = ("state_value", "advantage", "value_target")


def rollout(*size):
    g = torch.Generator().manual_seed(0)
    done = torch.rand(*size, 1, generator=g) < 0.3
    after = {"reward": torch.randn(*size, 1, generator=g), "done": done, "terminated": done.clone()}
    after["observation"] = torch.randn(*size, 3, generator=g)
    return TensorDict({"observation": torch.randn(*size, 3, generator=g), "next": after}, size)


def critic_of(network):
    return TensorDictModule(network, in_keys=["observation"], out_keys=["state_value"])


@pytest.fixture
def sizes(monkeypatch):
    """Batch sizes of all calls of networks."""
    seen, call = [], NetworkCall.__call__

    def count(self, leaves, batch_size):
        seen.append(tuple(batch_size))
        return call(self, leaves, batch_size)

    monkeypatch.setattr(NetworkCall, "__call__", count)
    return seen


@pytest.mark.parametrize(
    ("extra", "calls"),
    [((), 2), ((nn.LayerNorm(4), nn.ReLU()), 2), ((nn.BatchNorm1d(5),), 1), ((nn.Dropout(0.5),), 1)],
    ids=["plain", "layer-norm", "batch-norm", "dropout"],
)
def test_rows_that_do_not_see_each_other_come_in_two_parts(sizes, extra, calls):
    GAE(value_network=critic_of(nn.Sequential(nn.Linear(3, 4), *extra, nn.Linear(4, 1))))(rollout(4, 5))
    assert sizes == ([(4, 5)] * 2 if calls == 2 else [(8, 5)])


class Centred(nn.Sequential):
    """Rows see each other in its own `forward`."""

    def forward(self, x):
        return super().forward(x - x.mean((0, 1)))


class Named(Centred):
    row_wise = True


class Below(Named):
    """What a class says holds for itself: a subclass may compute something else."""


@pytest.mark.parametrize(("kind", "calls"), [(nn.Sequential, 2), (Centred, 1), (Named, 2), (Below, 1)])
def test_a_container_with_its_own_forward_gets_the_whole_batch_unless_it_says_otherwise(sizes, kind, calls):
    GAE(value_network=critic_of(kind(nn.Linear(3, 1))))(rollout(4, 5))
    assert len(sizes) == calls


def centred(x):
    """Of one part other than of both."""
    return x - x.mean((0, 1))


class Called(nn.Sequential):
    def __call__(self, x):
        return super().__call__(centred(x))


def forward_of_its_own(line):
    plain = line.forward
    line.forward = lambda x: plain(centred(x))
    return line


def hooked(line):
    line.register_forward_pre_hook(lambda _, given: (centred(given[0]),))
    return line


MIXED = {
    "function": lambda line: lambda x: line(centred(x)),
    "call": Called,
    "forward": lambda line: nn.Sequential(forward_of_its_own(line)),
    "hook": lambda line: nn.Sequential(hooked(line)),
    "hook-of-the-container": lambda line: hooked(nn.Sequential(line)),
}


@pytest.mark.parametrize("make", MIXED.values(), ids=MIXED)
def test_what_is_not_known_of_a_network_is_not_guessed(make):
    torch.manual_seed(0)
    line, batch = nn.Linear(3, 1), rollout(4, 5)
    both = torch.cat((batch["observation"], batch["next", "observation"]))
    expected = torch.nn.functional.linear(centred(both), line.weight, line.bias)
    found = GAE(value_network=critic_of(make(line)))(batch)["state_value"]
    torch.testing.assert_close(found, expected[:4].detach())


@pytest.mark.filterwarnings("ignore:.*spectral_norm:FutureWarning")
def test_weights_that_change_with_each_call_are_the_same_for_both_states():
    torch.manual_seed(0)
    network = nn.Sequential(nn.utils.spectral_norm(nn.Linear(3, 8)), nn.Linear(8, 1))
    batch = rollout(4, 5)
    batch["next", "observation"] = batch["observation"].clone()
    batch["next", "done"].zero_()
    batch["next", "terminated"].zero_()
    batch["next", "reward"].zero_()
    out = GAE(gamma=1.0, lmbda=0.0, value_network=critic_of(network))(batch)
    # Both states are rows of one product; which rows share a kernel's tile, and so their rounding, depends on the
    # processor. Values are of size 1.
    torch.testing.assert_close(out["advantage"], torch.zeros(4, 5, 1), rtol=0, atol=1e-6)


def test_a_layer_put_in_later_counts(sizes):
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    gae = GAE(value_network=critic_of(network))
    gae(rollout(4, 5))
    network[1] = nn.BatchNorm1d(5)
    gae(rollout(4, 5))
    network[1] = nn.Tanh()
    line = network[2]
    line.register_forward_hook(lambda *_: None)
    gae(rollout(4, 5))
    assert sizes == [(4, 5), (4, 5), (8, 5), (8, 5)]


@pytest.mark.parametrize("first", [nn.ReLU(inplace=True), nn.Sequential(nn.Identity(), nn.ELU(inplace=True))])
def test_layers_that_work_in_place_leave_the_batch_as_it_is(first):
    batch = rollout(4, 5)
    out = GAE(value_network=critic_of(nn.Sequential(first, nn.Linear(3, 1))))(batch.clone())
    for key in ("observation", ("next", "observation")):
        assert torch.equal(out[key], batch[key])


@pytest.mark.parametrize("network", [nn.Identity(), nn.Sequential(nn.Flatten(-1), nn.Identity())])
def test_values_have_memory_of_their_own(network):
    batch = rollout(4, 5)
    for part in (batch, batch["next"]):
        part["observation"] = part["observation"][..., :1]
    out = GAE(value_network=critic_of(network))(batch)
    kept = out["observation"].clone()
    out["state_value"].zero_()
    assert torch.equal(out["observation"], kept)


@pytest.mark.parametrize("differentiable", [False, True])
def test_in_two_parts_or_in_one_values_are_the_same(sizes, differentiable):
    torch.manual_seed(0)
    line, found = nn.Linear(3, 1), []
    for network in (line.forward, nn.Sequential(line)):
        out = GAE(value_network=critic_of(network), differentiable=differentiable)(rollout(3, 6))
        weights = list(line.parameters())
        grads = torch.autograd.grad(out["advantage"].square().sum(), weights) if differentiable else ()
        found.append([*(out[key] for key in KEYS), *grads])
    torch.testing.assert_close(*found)
    assert sizes == [(6, 6), (3, 6), (3, 6)]
