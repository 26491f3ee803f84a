"""A collector keeps its promises with each kind of policy and environment."""

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn

from rl.collectors import Collector
from rl.testing import CountingEnv, check_collector


class Slow(CountingEnv):
    """Has no leaf form."""

    def lowered(self):
        return None


class Chooses(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(1, 2)

    def forward(self, observation):
        return self.net(observation).argmax(-1)


def policy():
    torch.manual_seed(0)
    return TensorDictModule(Chooses(), ["observation"], ["action"])


def opaque():
    inner = policy()

    def act(td):
        return inner(td)

    return act


@pytest.mark.parametrize("kind", [CountingEnv, Slow])
@pytest.mark.parametrize("acts", [None, policy, opaque], ids=["random", "lowered", "opaque"])
@pytest.mark.parametrize("batch_size", [(), (2,)], ids=["one", "two"])
def test_a_collector_conforms(kind, acts, batch_size):
    def make():
        return Collector(kind(3, batch_size), acts and acts(), frames_per_batch=10, total_frames=60)

    assert check_collector(make).not_exercised == []
