"""Batches of environments whose specs differ, in collectors."""

import pytest
import torch

from rl.collectors import Collector
from rl.core.errors import SpecError
from rl.envs import CartPoleEnv, ParallelEnv, PendulumEnv, SerialEnv, StepCounter, TransformedEnv


def makers():
    return [PendulumEnv, lambda: TransformedEnv(PendulumEnv(max_torque=1.0), lambda td: td)]


@pytest.mark.parametrize("kind", [SerialEnv, ParallelEnv])
@pytest.mark.parametrize("policy", [None, lambda td: td.set("action", td["observation"][..., :1] * 0.3)])
def test_entries_that_can_be_stacked_are_collected_as_by_a_rollout(kind, policy):
    data = []
    for collect in (True, False):
        env = kind(2, makers())
        env.set_seed(3)
        torch.manual_seed(0)
        if collect:
            collector = Collector(env, policy, frames_per_batch=8, total_frames=16)
            data.append(torch.cat([batch.clone() for batch in collector], 1))
            collector.shutdown()
        else:
            data.append(env.rollout(8, policy).contiguous())
            env.close()
    collected, rolled = data
    for key in rolled.keys(include_nested=True, leaves_only=True):
        assert torch.equal(collected[key], rolled[key]), key


def test_episodes_are_cut_at_a_limit():
    env = SerialEnv(2, [lambda make=make: TransformedEnv(make(), StepCounter(99)) for make in makers()])
    (batch,) = Collector(env, None, frames_per_batch=12, total_frames=12, max_frames_per_traj=4)
    assert batch["next", "truncated"][..., 0].nonzero().tolist() == [[0, 3], [1, 3]]
    assert batch["step_count"][0].flatten().tolist() == [0, 1, 2, 3, 0, 1]


def test_what_cannot_be_stacked_is_named():
    with pytest.raises(
        SpecError, match=r"'th': environment 0 has nothing, environment 1 has float32 \[\](.|\n)*each kind"
    ):
        Collector(SerialEnv(2, [CartPoleEnv, PendulumEnv]), None, frames_per_batch=4)
