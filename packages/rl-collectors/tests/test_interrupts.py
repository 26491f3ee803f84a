"""Ctrl-C at each line of the collection of a batch: the batches after it are whole."""

import gc

import pytest
import torch
from tensordict.nn import TensorDictModule

from rl.collectors import AsyncBatchedCollector, Collector, MultiAsyncCollector, MultiSyncCollector
from rl.core import recurrent_mode, set_recurrent_mode
from rl.core.errors import RLError
from rl.core.testing import CountingEnv, interrupt_at

envs = pytest.importorskip("rl.envs")

OURS = ("/core/workers/_", "/rl/collectors/", "/envs/batched/_")


def policy():
    return TensorDictModule(lambda x: torch.zeros(x.shape[:-1], dtype=torch.int64), ["observation"], ["action"])


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
            check_whole([collector.collect().clone() for _ in range(3)], seen, torn=collector._torn)
        line += stride
    assert line > 50
    collector.shutdown()


def test_another_use_of_a_collector_is_still_refused_after_an_interrupt():
    tried = []

    def collects(td):
        if tried and tried[-1] == "now":
            with pytest.raises(RLError, match="in use by another thread, or by its own policy"):
                collector.state_dict()
            tried.append("refused")
        return td.set("action", torch.zeros(td.batch_size, dtype=torch.int64))

    collector = Collector(CountingEnv(), collects, frames_per_batch=4)
    assert interrupt_at(collector.collect, 60, OURS)
    tried.append("now")
    collector.collect()
    assert tried == ["now", "refused"]
    collector.shutdown()


def test_a_state_that_is_saved_after_an_interrupt_begins_with_a_reset():
    collector, other = (Collector(CountingEnv(), policy(), frames_per_batch=4) for _ in range(2))
    collector.collect()
    gc.collect()  # the ends of earlier collectors have lines, too
    assert interrupt_at(collector.collect, 60, OURS)
    other.load_state_dict(collector.state_dict())
    assert other.collect()["observation"].flatten().tolist() == [0, 1, 2, 0]


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
