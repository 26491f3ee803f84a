"""Environments whose done flags are under groups only."""

from itertools import pairwise

import pytest
import torch
from tensordict import TensorDict

from rl.collectors import Collector, MultiSyncCollector
from rl.core.errors import ContractError, SpecError
from rl.core.specs import Categorical, Composite, Unbounded

LENGTHS = torch.tensor([2, 3])
LOOPS = pytest.mark.parametrize("fast", [True, False], ids=["leaves", "tensordict"])


class Pair:
    """Two agents in each element, which count their own steps; agent i ends after 2 + i of them, and is reset alone."""

    def __init__(self, batch_size=(), fast=True):
        self.batch_size, self.fast = torch.Size(batch_size), fast
        shape = (*batch_size, 2, 1)
        group = lambda **specs: Composite({"agents": Composite(specs, shape=(*batch_size, 2))}, shape=batch_size)
        self.observation_spec = group(place=Unbounded(shape))
        self.full_action_spec = group(action=Unbounded(shape))
        self.full_reward_spec = group(reward=Unbounded(shape))
        flag = Categorical(2, shape=shape, dtype=torch.bool)
        self.full_done_spec = group(done=flag, terminated=flag.clone(), truncated=flag.clone())

    def lowered(self):
        return self if self.fast else None

    def reset_leaves(self, current=None, mask=None):
        flags = {("agents", f): torch.zeros(*self.batch_size, 2, 1, dtype=torch.bool) for f in
                 ("done", "terminated", "truncated")}  # fmt: skip
        return {("agents", "place"): torch.zeros(*self.batch_size, 2, 1), **flags}

    def step_leaves(self, root):
        place = root["agents", "place"] + 1
        done = place >= LENGTHS.unsqueeze(-1)
        return {
            ("agents", "place"): place, ("agents", "reward"): -place, ("agents", "done"): done,
            ("agents", "terminated"): done.clone(), ("agents", "truncated"): torch.zeros_like(done),
        }  # fmt: skip

    def _td(self, leaves):
        entries = {key[1]: leaf for key, leaf in leaves.items()}
        return TensorDict({"agents": TensorDict(entries, (*self.batch_size, 2))}, self.batch_size)

    def reset(self, tensordict=None):
        return self._td(self.reset_leaves())

    def step(self, tensordict):
        return tensordict.set("next", self._td(self.step_leaves({("agents", "place"): tensordict["agents", "place"]})))

    def step_and_maybe_reset(self, tensordict):
        stepped = self.step(tensordict)
        root = stepped["next"].clone()
        done = root["agents", "done"].clone()
        fresh = self.reset()
        for key in ("place", "done", "terminated"):
            root["agents", key] = torch.where(done, fresh["agents", key], root["agents", key])
        return stepped, root.exclude(("agents", "reward"))

    def set_seed(self, seed):
        return seed + 1

    def close(self):
        pass


@LOOPS
@pytest.mark.parametrize("batch_size", [(), (3,)], ids=["one", "three"])
def test_each_agent_is_reset_by_its_own_flag(fast, batch_size):
    collector = Collector(Pair(batch_size, fast), frames_per_batch=7 * max(1, *batch_size, 1))
    assert collector.path == ("leaves" if fast else "tensordict")
    batch = torch.cat([collector.collect(), collector.collect()], -1).reshape(-1, 14)
    for element, steps in enumerate(batch):
        assert steps["agents", "place"][..., 0].T.tolist() == [[t % 2 for t in range(14)], [t % 3 for t in range(14)]]
        assert steps["next", "agents", "place"][..., 0].T.tolist() == [
            [t % 2 + 1 for t in range(14)], [t % 3 + 1 for t in range(14)]
        ]  # fmt: skip
        assert not steps["agents", "done"].any()
        ids = steps["collector", "traj_ids"].tolist()
        ends = [(t + 1) % 2 == 0 or (t + 1) % 3 == 0 for t in range(14)]
        assert [one != other for one, other in pairwise(ids)] == ends[:-1], element
    assert batch["collector", "traj_ids"].unique().numel() == len(batch) * (1 + sum(ends[:-1]))
    assert not any(str(key).startswith("_") for key in batch.keys())


def test_whole_trajectories_end_where_a_flag_is_set():
    batch = Collector(Pair, frames_per_batch=12, trajs_per_batch=4, traj_format="cat").collect()
    assert batch["collector", "traj_ids"].tolist() == [0, 0, 1, 2, 3, 3]


def test_a_worker_collects_from_it():
    with MultiSyncCollector([Pair] * 2, frames_per_batch=12) as multi:
        assert multi.collect()["agents", "place"][0, :, 0, 0].tolist() == [0, 1, 0, 1, 0, 1]


@LOOPS
def test_what_needs_a_root_flag_is_refused(fast):
    with pytest.raises(SpecError, match="set_truncated=True needs 'truncated' at the root"):
        Collector(Pair(fast=fast), frames_per_batch=2, set_truncated=True)
    with pytest.raises(SpecError, match="max_frames_per_traj=4 needs 'truncated' at the root"):
        Collector(Pair(fast=fast), frames_per_batch=2, max_frames_per_traj=4)


@LOOPS
def test_contradictory_flags_of_a_group_are_refused(fast):
    class Wrong(Pair):
        def step_leaves(self, root):
            return {**super().step_leaves(root), ("agents", "truncated"): torch.ones(2, 1, dtype=torch.bool)}

    with pytest.raises(ContractError, match=r"Wrong\.step wrote done flags that contradict"):
        Collector(Wrong(fast=fast), frames_per_batch=3).collect()
