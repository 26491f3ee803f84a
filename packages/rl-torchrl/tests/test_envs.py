"""Environments in TorchRL's spelling; they need rl-envs."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from rl.torchrl.data import Bounded, Composite, Unbounded

pytest.importorskip("rl.envs")

from rl.torchrl.envs import EnvBase


class Walk(EnvBase):
    def __init__(self, *batch: int, **options) -> None:
        super().__init__(device="cpu", batch_size=batch, **options)
        self.model = nn.Linear(1, 1)
        self.observation_spec = Composite(observation=Unbounded((*batch, 1)), extra=None, shape=batch)
        self.state_spec = self.observation_spec.clone()
        self.action_spec = Bounded(-1, 1, shape=(*batch, 1))
        self.reward_spec = Unbounded((*batch, 1))

    def _reset(self, tensordict=None, **kwargs):
        return TensorDict({"observation": torch.zeros(*self.batch_size, 1)}, self.batch_size)

    def _step(self, tensordict):
        place = tensordict["observation"] + tensordict["action"]
        done = torch.zeros_like(place, dtype=torch.bool)
        return TensorDict({"observation": place, "reward": -place.abs(), "done": done}, tensordict.batch_size)

    def _set_seed(self, seed):
        self.rng = torch.manual_seed(seed)


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_specs_are_assigned_and_read_with_the_batch(batch):
    env = Walk(*batch)
    assert env.observation_spec.shape == batch
    assert env.observation_spec["observation"].shape == env.action_spec.shape == env.reward_spec.shape == (*batch, 1)
    assert env.action_spec_unbatched.shape == (1,)
    assert env.rollout(4).batch_size == (*batch, 4)


def test_a_spec_without_the_batch_is_that_of_one_element():
    env = Walk(3)
    env.action_spec = Bounded(-2, 2, shape=(1,))
    assert env.action_spec.shape == (3, 1)
    assert env.rand_action()["action"].shape == (3, 1)


def test_it_is_a_module():
    env = Walk(2)
    assert isinstance(env, nn.Module)
    assert {name for name, _ in env.named_parameters()} == {"model.weight", "model.bias"}
    assert env.to(torch.float64).model.weight.dtype is torch.float64
    assert nn.ModuleList([env])[0].eval() is env


def test_arguments_of_torchrl_are_answered():
    assert Walk(run_type_checks=False, spec_locked=True).batch_size == ()
    with pytest.raises(TypeError, match="use debug=True or check_env_specs"):
        Walk(run_type_checks=True)
