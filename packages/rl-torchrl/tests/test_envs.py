"""Environments in TorchRL's spelling; they need rl-envs."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from rl.core.errors import RLError
from rl.torchrl.data import Bounded, Composite, Unbounded

pytest.importorskip("rl.envs")

from rl.torchrl.envs import EnvBase, ObservationTransform, Transform, TransformedEnv


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


def test_a_close_of_its_own_may_say_that_it_is_closed():
    class Own(Walk):
        def close(self, **kwargs):
            self.is_closed = True

    env = Own()
    env.close()
    assert env.is_closed
    with pytest.raises(RLError, match="is closed"):
        env.reset()


class Shift(ObservationTransform):
    """Observations by their first, seen at a reset."""

    def _reset(self, tensordict, tensordict_reset):
        self.register_buffer("first", tensordict_reset["observation"] - 1)
        return self._call(tensordict_reset)

    def _apply_transform(self, obs):
        return obs - self.first

    def _inv_apply_transform(self, state):
        return state / 2

    def transform_observation_spec(self, observation_spec):
        observation_spec["count"] = Unbounded((*self.parent.batch_size, 2))
        return observation_spec

    def _call(self, next_tensordict):
        next_tensordict = super()._call(next_tensordict)
        return next_tensordict.set("count", torch.ones(*next_tensordict.batch_size, 2))

    def transform_action_spec(self, action_spec):
        action_spec["action"] = Bounded(-2, 2, action_spec["action"].shape)
        return action_spec


@pytest.mark.parametrize("batch", [(), (3,)])
def test_a_transform_has_the_hooks_of_torchrl(batch):
    env = TransformedEnv(Walk(*batch), Shift(in_keys=["observation"], in_keys_inv=["action"]))
    assert env.observation_spec["count"].shape == (*batch, 2)
    assert env.action_spec.space.high.max() == 2
    root = env.reset()
    assert root["observation"].eq(1).all()
    root["action"] = torch.full((*batch, 1), 2.0)
    step = env.step(root)
    assert step["next", "observation"].eq(3).all()  # 1, half of the action, and the first
    assert step["action"].eq(2).all()
    assert step["next", "count"].shape == (*batch, 2)


def test_a_transform_that_is_for_no_observations_does_not_map_a_reset():
    class Negate(Transform):
        def _apply_transform(self, obs):
            return -obs - 1

    rollout = TransformedEnv(Walk(), Negate(in_keys=["observation"])).rollout(1)
    assert rollout["observation"].item() == 0
    assert rollout["next", "observation"].item() < 0.0


class Early(EnvBase):
    """Specs at the class from `__new__`, and specs before the constructor of the base class."""

    def __new__(cls, *args, width=2, **kwargs):
        cls._output_spec = Composite(
            full_observation_spec=Composite(observation=Unbounded((3, width)), shape=(3,)), shape=(3,)
        )
        return super().__new__(cls, *args, _batch_locked=False, **kwargs)

    def __init__(self, width=2) -> None:
        self.action_spec = Bounded(-1, 1, shape=(3, width))
        super().__init__(batch_size=[3])
        self.is_closed = False
        self.reward_spec_unbatched = Unbounded((4,))


def test_specs_may_be_given_before_the_constructor_of_the_base_class():
    env = Early(width=5)
    assert env.observation_spec["observation"].shape == env.action_spec.shape == (3, 5)
    assert env.reward_spec.shape == (3, 4)
    assert not env.batch_locked
    assert not env.is_closed
    env.close()
    assert env.is_closed


def test_the_only_back_end_may_be_set():
    gymnasium = pytest.importorskip("gymnasium")
    from rl.torchrl.envs import __all__ as names
    from rl.torchrl.envs import gym_backend, set_gym_backend

    assert {"gym_backend", "set_gym_backend"} <= {*names}

    set_gym_backend(gymnasium).set()
    with set_gym_backend("gymnasium"):
        assert gym_backend() is gymnasium
        assert gym_backend("wrappers") is gymnasium.wrappers
    with pytest.raises(ValueError, match="set_gym_backend: backend must be 'gymnasium', got 'gym'"):
        set_gym_backend("gym")
