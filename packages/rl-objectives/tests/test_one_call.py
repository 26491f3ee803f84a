"""Values before and after a step come from one call of the network."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl.objectives.value import GAE


def rollout(*size):
    g = torch.Generator().manual_seed(0)
    done = torch.rand(*size, 1, generator=g) < 0.3
    after = {"reward": torch.randn(*size, 1, generator=g), "done": done, "terminated": done.clone()}
    after["observation"] = torch.randn(*size, 3, generator=g)
    return TensorDict({"observation": torch.randn(*size, 3, generator=g), "next": after}, size)


def critic_of(network):
    return TensorDictModule(network, in_keys=["observation"], out_keys=["state_value"])


def test_a_network_sees_both_states_at_once():
    torch.manual_seed(0)
    line, batch = nn.Linear(3, 1), rollout(4, 5)
    both = torch.cat((batch["observation"], batch["next", "observation"]))
    expected = line(both - both.mean((0, 1)))
    found = GAE(value_network=critic_of(lambda x: line(x - x.mean((0, 1)))))(batch)["state_value"]
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
