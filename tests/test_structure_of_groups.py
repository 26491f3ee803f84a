"""Every way to collect gives the same structure, batch sizes and names of groups, and legal random actions."""

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from rl.collectors import AsyncBatchedCollector, Collector, MultiAsyncCollector, MultiSyncCollector
from rl.core.specs import Bounded, Categorical, Composite, Unbounded
from rl.envs import (
    ActionMask,
    AsyncEnvPool,
    EnvBase,
    LeafEnvBase,
    ParallelEnv,
    SerialEnv,
    StepCounter,
    TicTacToeEnv,
    TransformedEnv,
)


class Specs:
    """Three agents with a batch dimension of their own, in episodes of five steps."""

    def __init__(self):
        super().__init__()
        self.observation_spec = Composite(agents=Composite(place=Unbounded((3, 2)), shape=(3,)))
        self.action_spec = Composite(agents=Composite(action=Bounded(-1, 1, shape=(3, 1)), shape=(3,)))
        self.reward_spec = Composite(agents=Composite(reward=Unbounded((3, 1)), shape=(3,)))

    def _set_seed(self, seed):
        pass

    def state_dict(self):
        return {"restorable": True, "count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]
        return True


class Group(Specs, EnvBase):
    def _reset(self, tensordict):
        self.count = 0
        return TensorDict(agents=TensorDict(place=torch.zeros(3, 2), batch_size=[3]))

    def _step(self, tensordict):
        assert tensordict["agents"].batch_size == (3,)
        self.count += 1
        agents = TensorDict(place=torch.ones(3, 2), reward=torch.ones(3, 1), batch_size=[3])
        return TensorDict(agents=agents, terminated=torch.tensor([self.count == 5]))


class LooseGroup(Specs, EnvBase):
    """Flags in a group of their own, and groups that are written without batch sizes."""

    def __init__(self):
        super().__init__()
        flags = {name: Categorical(2, shape=(3, 1), dtype=torch.bool) for name in ("done", "terminated")}
        self.done_spec = Composite(agents=Composite(flags, shape=(3,)), done=Categorical(2, (1,), dtype=torch.bool))

    def _reset(self, tensordict):
        self.count = 0
        return TensorDict(agents=TensorDict(place=torch.zeros(3, 2)))

    def _step(self, tensordict):
        self.count += 1
        return TensorDict(
            agents=TensorDict(place=torch.ones(3, 2), reward=torch.ones(3, 1)),
            terminated=torch.tensor([self.count == 5]),
        )


class LeafGroup(Specs, LeafEnvBase):
    def _reset_leaves(self, mask):
        self.count = 0
        return {("agents", "place"): torch.zeros(3, 2)}

    def _step_leaves(self, root):
        self.count += 1
        leaves = {("agents", "place"): torch.ones(3, 2), ("agents", "reward"): torch.ones(3, 1)}
        return leaves | {"terminated": torch.tensor([self.count == 5])}


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
    "one": lambda group: rolled(group()),
    "transformed": lambda group: rolled(TransformedEnv(group(), StepCounter())),
    "serial": lambda group: rolled(SerialEnv(2, group)),
    "parallel": lambda group: rolled(ParallelEnv(2, group, processes=2)),
    "parallel, one process": lambda group: rolled(ParallelEnv(2, group, processes=1)),
    "messages": lambda group: rolled(ParallelEnv(2, group, processes=2, shared_memory=False)),
    "view": lambda group: rolled(SerialEnv(3, group)[1:]),
    "pool": lambda group: rolled(AsyncEnvPool([group] * 2)),
    "threads": lambda group: rolled(AsyncEnvPool([group] * 2, backend="threading")),
    "collector": lambda group: collected(Collector, group),
    "collector, serial": lambda group: collected(Collector, SerialEnv(2, group)),
    "collector, parallel": lambda group: collected(Collector, ParallelEnv(2, group, processes=2)),
    "collector, trajectories": lambda group: collected(Collector, group, trajs_per_batch=2, traj_format="cat"),
    "sync": lambda group: collected(MultiSyncCollector, [group] * 2),
    "sync, flat": lambda group: collected(MultiSyncCollector, [group] * 2, cat_results=0),
    "sync, preemptive": lambda group: collected(MultiSyncCollector, [group] * 2, preemptive_threshold=0.5),
    "async": lambda group: collected(MultiAsyncCollector, [group] * 2),
    "sync, parallel": lambda group: collected(
        MultiSyncCollector, [lambda: ParallelEnv(2, group, processes=2)] * 2, frames=16
    ),
    "async, parallel": lambda group: collected(MultiAsyncCollector, [lambda: ParallelEnv(2, group, processes=2)] * 2),
    "batched": lambda group: collected(AsyncBatchedCollector, [group] * 2),
    "batched, threads": lambda group: collected(AsyncBatchedCollector, [group] * 2, env_backend="threading"),
}


FORMS = pytest.mark.parametrize("group", [Group, LooseGroup, LeafGroup], ids=["tensordict", "loose", "leaves"])


@FORMS
@pytest.mark.parametrize("way", WAYS)
def test_the_structure_has_the_batch_sizes_of_the_specs(way, group):
    agents = (torch.Size([3]), ["time", None], True)
    assert structure(WAYS[way](group)) == {
        "agents": agents,
        "next": (torch.Size([]), ["time"], True),
        ("next", "agents"): agents,
    }


@FORMS
@pytest.mark.parametrize(
    "make",
    [lambda group: group(), lambda group: SerialEnv(2, group), lambda group: ParallelEnv(2, group, processes=2)],
    ids=["one", "serial", "parallel"],
)
def test_resets_and_steps_have_the_batch_sizes_of_the_specs(make, group):
    env = make(group)
    root = env.rand_action(env.reset())
    stepped, following = env.step_and_maybe_reset(root)
    mask = torch.zeros(*env.batch_size, 1, dtype=torch.bool)
    mask[:1] = True
    partly = env.reset(following.clone().set("_reset", mask))
    for td in (root, stepped["next"], following, partly):
        assert td["agents"].batch_size == (*env.batch_size, 3)
    env.close()


@FORMS
def test_a_policy_reads_the_batch_sizes_of_the_specs(group):
    sizes = []

    def policy(td):
        sizes.append((*td.batch_size, td["agents"].batch_size[td.ndim :]))
        return td.set(("agents", "action"), torch.zeros(*td.batch_size, 3, 1))

    group().rollout(7, policy, break_when_any_done=False)
    first, other = (Collector(group(), policy, frames_per_batch=7, total_frames=14) for _ in range(2))
    first.collect()
    other.load_state_dict(first.state_dict())
    other.collect()
    assert sizes == [(torch.Size([3]),)] * 21


def game():
    return TransformedEnv(TicTacToeEnv(), ActionMask())


@pytest.mark.parametrize(
    "collect",
    [
        lambda: collected(Collector, SerialEnv(2, game)),
        lambda: collected(Collector, ParallelEnv(2, game, processes=2)),
        lambda: collected(Collector, TransformedEnv(SerialEnv(2, game), StepCounter())),
        lambda: collected(MultiSyncCollector, [lambda: SerialEnv(2, game)] * 2, frames=16),
        lambda: collected(AsyncBatchedCollector, [game] * 2),
    ],
    ids=["serial", "parallel", "transformed", "sync", "batched"],
)
def test_random_frames_have_legal_actions(collect):
    data = collect()
    cells = data["board"].flatten(-2)[data["action"].bool()]
    assert cells.numel() == data.numel()
    assert not cells.any()
