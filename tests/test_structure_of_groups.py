"""Every way to collect gives the same structure: batch sizes and names of groups."""

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from rl.collectors import AsyncBatchedCollector, Collector, MultiAsyncCollector, MultiSyncCollector
from rl.core.specs import Bounded, Composite, Unbounded
from rl.envs import AsyncEnvPool, EnvBase, ParallelEnv, SerialEnv


class Group(EnvBase):
    """Three agents with a batch dimension of their own, in episodes of five steps."""

    def __init__(self):
        super().__init__()
        self.observation_spec = Composite(agents=Composite(place=Unbounded((3, 2)), shape=(3,)))
        self.action_spec = Composite(agents=Composite(action=Bounded(-1, 1, shape=(3, 1)), shape=(3,)))
        self.reward_spec = Composite(agents=Composite(reward=Unbounded((3, 1)), shape=(3,)))

    def _reset(self, tensordict):
        self.count = 0
        return TensorDict(agents=TensorDict(place=torch.zeros(3, 2), batch_size=[3]))

    def _step(self, tensordict):
        assert tensordict["agents"].batch_size == (3,)
        self.count += 1
        agents = TensorDict(place=torch.ones(3, 2), reward=torch.ones(3, 1), batch_size=[3])
        return TensorDict(agents=agents, terminated=torch.tensor([self.count == 5]))

    def _set_seed(self, seed):
        pass


def structure(data):
    """Dimensions that parts have besides those of the batch, and their names."""
    parts = {
        key: (
            part.batch_size[data.ndim :],
            part.names[data.ndim - 1 :],
            part.batch_size[: data.ndim] == data.batch_size,
        )
        for key, part in data.items(include_nested=True)
        if isinstance(part, TensorDictBase)
    }
    return {key: parts[key] for key in parts if key != "collector"}


def rolled(env):
    try:
        return env.rollout(7, break_when_any_done=False)
    finally:
        env.close()


def collected(kind, env, frames=14, **settings):
    collector = kind(env, None, frames_per_batch=frames, **settings)
    try:
        return [collector.collect().clone() for _ in range(2)][-1]
    finally:
        collector.shutdown()


WAYS = {
    "serial": lambda: rolled(SerialEnv(2, Group)),
    "parallel": lambda: rolled(ParallelEnv(2, Group, processes=2)),
    "parallel, one process": lambda: rolled(ParallelEnv(2, Group, processes=1)),
    "messages": lambda: rolled(ParallelEnv(2, Group, processes=2, shared_memory=False)),
    "view": lambda: rolled(SerialEnv(3, Group)[1:]),
    "pool": lambda: rolled(AsyncEnvPool([Group] * 2)),
    "threads": lambda: rolled(AsyncEnvPool([Group] * 2, backend="threading")),
    "collector": lambda: collected(Collector, Group),
    "collector, serial": lambda: collected(Collector, SerialEnv(2, Group)),
    "collector, parallel": lambda: collected(Collector, ParallelEnv(2, Group, processes=2)),
    "collector, trajectories": lambda: collected(Collector, Group, trajs_per_batch=2, traj_format="cat"),
    "sync": lambda: collected(MultiSyncCollector, [Group] * 2),
    "sync, flat": lambda: collected(MultiSyncCollector, [Group] * 2, cat_results=0),
    "sync, preemptive": lambda: collected(MultiSyncCollector, [Group] * 2, preemptive_threshold=0.5),
    "async": lambda: collected(MultiAsyncCollector, [Group] * 2),
    "sync, parallel": lambda: collected(
        MultiSyncCollector, [lambda: ParallelEnv(2, Group, processes=2)] * 2, frames=16
    ),
    "async, parallel": lambda: collected(MultiAsyncCollector, [lambda: ParallelEnv(2, Group, processes=2)] * 2),
    "batched": lambda: collected(AsyncBatchedCollector, [Group] * 2),
    "batched, threads": lambda: collected(AsyncBatchedCollector, [Group] * 2, env_backend="threading"),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_structure_is_that_of_a_rollout_of_one_environment(way):
    wanted = structure(Group().rollout(7, break_when_any_done=False))
    assert wanted["agents"] == (torch.Size([3]), ["time", None], True)
    found = structure(WAYS[way]())
    assert found == wanted


@pytest.mark.parametrize("make", [SerialEnv, ParallelEnv])
def test_resets_and_steps_have_the_structure_of_one_environment(make):
    env = make(2, Group)
    root = env.rand_action(env.reset())
    stepped, following = env.step_and_maybe_reset(root)
    partly = env.reset(following.clone().set("_reset", torch.tensor([[True], [False]])))
    for td in (root, stepped["next"], following, partly):
        assert td["agents"].batch_size == (2, 3)
    env.close()
