"""Entries of batches of environments whose specs differ."""

from types import SimpleNamespace

import pytest
import torch
from tensordict import TensorDict, lazy_stack

from rl.core.env_specs import check_flags, entry_faults, stack_faults
from rl.core.errors import CheckError
from rl.core.specs import Binary, Bounded, Categorical, Composite, Unbounded


@pytest.fixture
def env():
    def stack(*specs):
        return torch.stack(specs)

    done = {"done": Binary(1, dtype=torch.bool), "terminated": Binary(1, dtype=torch.bool)}
    return SimpleNamespace(
        batch_size=torch.Size([3]),
        observation_spec=stack(
            Composite(place=Unbounded(2), seen=Bounded(0, 1, shape=(1,))),
            Composite(place=Unbounded(2), seen=Bounded(0, 9, shape=(1,))),
            Composite(place=Unbounded(3), seen=Bounded(0, 9, shape=(1,)), more=Unbounded(1)),
        ),
        full_action_spec=stack(*[Composite(action=spec) for spec in (Categorical(2), Categorical(3), Unbounded(()))]),
        full_reward_spec=Composite(reward=Unbounded((3, 1)), shape=(3,)),
        full_done_spec=stack(
            *[Composite(done), Composite(done), Composite({**done, "truncated": Binary(1, dtype=torch.bool)})]
        ),
    )


def test_what_no_tensor_can_hold_is_named_with_two_environments(env):
    assert stack_faults(env) == {
        "place": "environment 0 has float32 [2], environment 2 has float32 [3]",
        "more": "environment 0 has nothing, environment 2 has float32 [1]",
        "action": "environment 0 has int64 [], environment 2 has float32 []",
        "truncated": "environment 0 has nothing, environment 2 has bool [1]",
    }


def test_each_environment_is_compared_with_its_own_specs(env):
    found = lazy_stack([spec.rand() for spec in env.observation_spec.specs])
    assert entry_faults(found, [env.observation_spec], env) == {}
    found[1].set("seen", torch.tensor([2.0])), found[0].set("seen", torch.tensor([2.0]))
    found[2].set("place", torch.zeros(2)), found[1].set("odd", torch.zeros(2))
    assert entry_faults(found, [env.observation_spec], env) == {
        ("environment 0", "seen"): "expected float32 [1] in [0, 1], got float32 [1] with values [2.0]",
        ("environment 1", "odd"): "expected nothing, got float32 [2]",
        ("environment 2", "place"): "expected float32 [3], got float32 [2]",
    }


def test_the_flags_of_each_environment_are_compared(env):
    def flags(**values):
        return TensorDict({name: torch.tensor([value]) for name, value in values.items()})

    right = flags(done=True, terminated=True)
    check_flags(lazy_stack([right, right, flags(done=True, terminated=False, truncated=True)]), env, "here")
    with pytest.raises(CheckError, match="here of environment 2"):
        check_flags(lazy_stack([right, right, flags(done=True, terminated=False, truncated=False)]), env, "here")


def test_stacked_values_whose_devices_differ_have_none():
    here = Composite(x=Unbounded(2, device="cpu"), device="cpu")
    anywhere = Composite(x=Unbounded(3))
    value = torch.stack([here, anywhere]).rand()
    assert value.device is None
    assert value[1]["x"].shape == (3,)
