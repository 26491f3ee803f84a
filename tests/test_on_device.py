"""`pytest --device`: what tests make is moved, what the library makes while it runs is not."""

import torch
from on_device import PlaceTests
from torch import nn

from rl.modules import MLP, NoisyLinear
from rl.testing import CountingEnv

LIBRARY = """
import torch
class Made:
    def __init__(self):
        self.tensor = self.helper()
    def helper(self):
        return torch.zeros(2)
    def run(self):
        return torch.zeros(2)
"""


def library():
    namespace = {}
    exec(compile(LIBRARY, "/anywhere/rl/replay/made.py", "exec"), namespace)
    return namespace["Made"]


def test_tensors_and_objects_of_a_test_are_moved():
    with PlaceTests("meta"):
        assert torch.zeros(2).is_meta
        assert torch.tensor([1.0]).is_meta
        assert torch.rand(2, generator=torch.Generator()).is_meta
        assert nn.Linear(2, 3).weight.is_meta
        assert not torch.zeros(2, device="cpu").is_meta
    assert not torch.zeros(2).is_meta


def test_what_the_library_makes_at_run_time_stays():
    with PlaceTests("meta"):
        made = library()()
        assert made.tensor.is_meta
        assert not made.run().is_meta


def test_what_decorated_constructors_and_conformance_checks_make_is_moved():
    """`NoisyLinear` and `MLP` have wrapped constructors, for a device and for arguments of other libraries."""
    with PlaceTests("meta"):
        assert NoisyLinear(2, 3).weight_mu.is_meta
        assert MLP(2, 3, num_cells=[4])[0].weight.is_meta
        assert CountingEnv().reset()["observation"].is_meta
