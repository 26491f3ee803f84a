"""Ctrl-C at each line of the collection of a batch: the batches after it are whole."""

import gc
from functools import partial

import pytest
import torch
from tensordict.nn import TensorDictModule

from rl.collectors import AsyncBatchedCollector, Collector, MultiAsyncCollector, MultiSyncCollector
from rl.core import recurrent_mode, set_recurrent_mode
from rl.core.errors import RLError
from rl.testing import CountingEnv, interrupt_at

envs = pytest.importorskip("rl.envs")

OURS = ("/core/workers/_", "/rl/collectors/", "/envs/batched/_")


def policy():
    return TensorDictModule(lambda x: torch.zeros(x.shape[:-1], dtype=torch.int64), ["observation"], ["action"])


class Weighted(torch.nn.Module):
    """Writes its weight next to the action."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return torch.zeros(x.shape[:-1], dtype=torch.int64), self.weight.detach().expand(x.shape[:-1]).clone()


def check_whole(batches, seen, *, torn):
    """Each trajectory counts without a gap over all batches.

    It counts from 0, and none continues from before the interrupt, unless that came when the batch was complete: then
    the batch is lost as a whole.
    """
    steps = {}
    for batch in batches:
        rows = batch.reshape(-1)
        for observation, following, number, done in zip(
            rows["observation"].flatten().tolist(),
            rows["next", "observation"].flatten().tolist(),
            rows["collector", "traj_ids"].flatten().tolist(),
            rows["next", "done"].flatten().tolist(),
            strict=True,
        ):
            assert not torn or number not in seen
            assert observation == steps.get(number, 0 if torn else observation), (number, observation)
            assert following == observation + 1
            assert done == (following == 3)
            steps[number] = observation + 1
    seen.update(steps)


COLLECTORS = {
    "one": (lambda: Collector(CountingEnv(), policy(), frames_per_batch=4), 7),
    "whole": (lambda: Collector(CountingEnv(), policy(), frames_per_batch=4, trajs_per_batch=2, traj_format="cat"), 7),
    "parallel": (lambda: Collector(envs.ParallelEnv(2, CountingEnv, processes=2), policy(), frames_per_batch=8), 7),
    "sync": (lambda: MultiSyncCollector([CountingEnv] * 2, policy(), frames_per_batch=8, timeout=20), 3),
    "async": (lambda: MultiAsyncCollector([CountingEnv] * 2, policy(), frames_per_batch=4, timeout=20), 3),
    "preemptive": (
        lambda: MultiSyncCollector(
            [CountingEnv] * 2, policy(), frames_per_batch=8, preemptive_threshold=1.0, timeout=20
        ),
        3,
    ),
    "sync whole": (
        lambda: MultiSyncCollector(
            [CountingEnv] * 2, policy(), frames_per_batch=8, trajs_per_batch=3, traj_format="cat", timeout=20
        ),
        5,
    ),
    "async whole": (
        lambda: MultiAsyncCollector(
            [CountingEnv] * 2, policy(), frames_per_batch=4, trajs_per_batch=3, traj_format="cat", timeout=20
        ),
        5,
    ),
    "batched": (
        lambda: AsyncBatchedCollector(
            [CountingEnv] * 2, policy(), frames_per_batch=6, env_backend="multiprocessing", timeout=20
        ),
        7,
    ),
    "batched threads": (
        lambda: AsyncBatchedCollector(
            [CountingEnv] * 2, policy(), frames_per_batch=6, env_backend="threading", timeout=20
        ),
        7,
    ),
}


@pytest.mark.parametrize("warm", [0, 2])
@pytest.mark.parametrize("kind", COLLECTORS)
def test_batches_after_ctrl_c_at_any_line_are_whole(kind, warm):
    make, stride = COLLECTORS[kind]
    collector = make()
    seen, line, reached = set(), 1, True
    for _ in range(warm):
        collector.collect()
    while reached:
        collector.reset()
        reached = interrupt_at(collector.collect, line, OURS)
        if reached:
            torn = collector._interrupted
            check_whole([collector.collect().clone() for _ in range(3)], seen, torn=torn)
        line += stride
    assert line > 50
    collector.shutdown()


def test_another_use_of_a_collector_is_still_refused_after_an_interrupt():
    tried = []

    def collects(td):
        if tried and tried[-1] == "now":
            with pytest.raises(RLError, match="in use by another thread, or by its own policy"):
                collector.state_dict()
            with pytest.raises(RLError, match="in use by another thread, or by its own policy"):
                collector.later()
            tried.append("refused")
        return td.set("action", torch.zeros(td.batch_size, dtype=torch.int64))

    class Extended(Collector):
        """Has a further use."""

        def later(self):
            with self._exclusive("later"):
                return self.collected_frames

    collector = Extended(CountingEnv(), collects, frames_per_batch=4)
    assert interrupt_at(collector.collect, 60, OURS)
    tried.append("now")
    collector.collect()
    assert tried == ["now", "refused"]
    for line in range(1, 60):
        interrupt_at(collector.later, line, OURS)
        assert collector.later() == collector.collected_frames
    collector.shutdown()


def test_a_state_that_is_saved_after_an_interrupt_begins_with_a_reset():
    collector, other = (Collector(CountingEnv(), policy(), frames_per_batch=4) for _ in range(2))
    collector.collect()
    gc.collect()  # the ends of earlier collectors have lines, too
    assert interrupt_at(collector.collect, 60, OURS)
    other.load_state_dict(collector.state_dict())
    assert other.collect()["observation"].flatten().tolist() == [0, 1, 2, 0]


HOOKED = {
    "one": partial(Collector, CountingEnv),
    "sync": partial(MultiSyncCollector, [CountingEnv], timeout=20),
    "async": partial(MultiAsyncCollector, [CountingEnv], timeout=20),
    "batched": partial(AsyncBatchedCollector, [CountingEnv], env_backend="threading", timeout=20),
}


@pytest.mark.parametrize("where", ["pre_collect_hook", "postproc", "buffer"])
@pytest.mark.parametrize("kind", HOOKED)
def test_what_a_hook_reads_is_that_of_a_whole_collector(kind, where):
    def look(batch=None):
        seen.append(collector._interrupted)
        if kind != "batched":
            assert collector.stats
            states.append(collector.state_dict())
        return batch

    class Buffer:
        def extend(self, batch):
            look()
            batches.append(batch.clone())

    if where == "pre_collect_hook" and kind in ("sync", "async"):
        pytest.skip("it is called in the workers")
    seen, states, batches = [], [], []
    settings = {"replay_buffer": Buffer()} if where == "buffer" else {where: look}
    collector = HOOKED[kind](policy(), frames_per_batch=4, **settings)
    found = [collector.collect() for _ in range(4)]
    batches = batches or found
    assert seen == [False] * 4
    assert [int(x) for batch in batches for x in batch["observation"].flatten()] == [t % 3 for t in range(16)]
    if kind == "one":
        assert all(state["env"] is not None for state in states)
    collector.shutdown()


@pytest.mark.parametrize("kind", ["one", "sync", "async"])
def test_weights_after_ctrl_c_at_any_line_of_an_update_reach_the_policy(kind):
    weighted = TensorDictModule(Weighted(), ["observation"], ["action", "weight"])
    collector = HOOKED[kind](weighted, frames_per_batch=4)
    collector.collect()
    line, reached, value = 1, True, 0.0
    while reached:
        value += 2
        torch.nn.init.constant_(weighted.module.weight, value)
        reached = interrupt_at(collector.update_policy_weights_, line, OURS)
        collector.collect()
        torch.nn.init.constant_(weighted.module.weight, value + 1)
        collector.update_policy_weights_()
        batches = [collector.collect() for _ in range(4 if kind == "async" else 1)]  # some are ready already
        assert (batches[-1]["weight"] == value + 1).all(), line
        line += 1
    assert line > 5
    collector.shutdown()


def test_modes_of_the_process_are_those_before_the_interrupted_batch():
    def leave_a_block_open():
        set_recurrent_mode(False).__enter__()
        torch.no_grad().__enter__()
        raise KeyboardInterrupt

    collector = Collector(CountingEnv(), policy(), frames_per_batch=4)
    collector.pre_collect_hook = leave_a_block_open
    with pytest.raises(KeyboardInterrupt):
        collector.collect()
    assert torch.is_grad_enabled()
    assert recurrent_mode() is None
    collector.shutdown()
