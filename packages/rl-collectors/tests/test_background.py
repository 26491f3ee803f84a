"""Collection in a background thread."""

import threading
import time

import pytest
import torch

from rl.collectors import Collector
from rl.core.errors import ArgumentError, RLError


class Buffer:
    def __init__(self):
        self.batches = []
        self.more = threading.Event()

    def extend(self, batch):
        self.batches.append(batch)
        self.more.set()

    def wait(self):
        self.more.clear()
        assert self.more.wait(10)


def steps_of(buffer):
    return torch.cat([batch["observation"][:, 2] for batch in buffer.batches]).tolist()


def test_all_frames_are_collected_in_order(counting_env):
    buffer = Buffer()
    collector = Collector(counting_env([[7]]), frames_per_batch=5, total_frames=50, replay_buffer=buffer)
    collector.start()
    while collector.is_running():
        time.sleep(0.001)
    assert steps_of(buffer) == [t % 7 for t in range(50)]
    collector.start()  # nothing is left
    collector.async_shutdown()
    assert len(buffer.batches) == 10
    assert collector.env.closed == 1


def test_a_pause_is_between_two_batches(counting_env):
    buffer = Buffer()
    collector = Collector(counting_env([[7]]), frames_per_batch=5, replay_buffer=buffer)
    collector.start()
    buffer.wait()
    with pytest.raises(RLError, match=r"call pause\(\) before collect"):
        collector.collect()
    with collector.pause():
        assert not collector.is_running()
        count = len(buffer.batches)
        time.sleep(0.02)
        assert len(buffer.batches) == count
        assert collector.collect() is None  # in this thread
    assert collector.is_running()
    buffer.wait()
    collector.pause()
    assert not collector.is_running()
    count = len(buffer.batches)
    assert steps_of(buffer) == [t % 7 for t in range(5 * count)]
    collector.start()
    buffer.wait()
    collector.shutdown()
    assert steps_of(buffer) == [t % 7 for t in range(5 * len(buffer.batches))]


def test_weights_and_states_are_whole_while_it_runs(counting_env, make_policy):
    policy, buffer = make_policy(), Buffer()
    settings = {"frames_per_batch": 50, "replay_buffer": buffer, "track_policy_version": True}
    with Collector(counting_env([[7]]), policy, **settings) as collector:
        collector.start()
        for version in range(1, 10):
            weights = {name: torch.full_like(value, version) for name, value in policy.state_dict().items()}
            collector.update_policy_weights_(weights)
            state = collector.state_dict()
            assert state["frames"] % 50 == 0
            buffer.wait()
    for batch in buffer.batches:
        version = batch["policy_version"][0]
        assert (batch["policy_version"] == version).all()
        if version:  # scores of weights that all equal the version
            expected = version * (batch["observation"].sum(-1) + 1)
            assert torch.allclose(batch["scores"], expected.unsqueeze(-1).expand_as(batch["scores"]))
    assert {int(batch["policy_version"][0]) for batch in buffer.batches} >= {9}


@pytest.mark.parametrize("call", ["is_running", "start", "pause", "collect", "state_dict", "async_shutdown"])
def test_an_exception_is_raised_by_the_next_call(counting_env, call):
    def policy(td):
        if td["observation"][1] == 3:
            raise ZeroDivisionError("of the policy")
        return td.set("action", torch.tensor(0))

    buffer = Buffer()
    collector = Collector(counting_env([[4]]), policy, frames_per_batch=2, replay_buffer=buffer)
    collector.start()
    collector._background._thread.join(10)
    with pytest.raises(ZeroDivisionError, match="of the policy"):
        getattr(collector, call)()
    assert not collector.is_running()
    assert len(buffer.batches) == 6
    collector.shutdown()
    assert collector.env.closed == 1


def test_a_hook_may_call_the_collector(counting_env):
    calls = []

    def hook(_):
        collector.update_policy_weights_()
        calls.append(collector.is_running())

    buffer = Buffer()
    collector = Collector(
        counting_env, frames_per_batch=5, total_frames=20, replay_buffer=buffer, post_collect_hook=hook
    )
    collector.start()
    while collector.is_running():
        time.sleep(0.001)
    assert calls == [True] * 4
    assert collector.policy_version == 4


def test_a_hook_may_pause(counting_env):
    buffer = Buffer()
    settings = {"replay_buffer": buffer, "post_collect_hook": lambda _: collector.pause()}
    collector = Collector(counting_env, frames_per_batch=5, **settings)
    for count in (1, 2):
        collector.start()
        while collector.is_running():
            time.sleep(0.001)
        collector.pause()  # waits for the batch
        assert len(buffer.batches) == count
    collector.shutdown()


def test_without_a_buffer_or_in_time(counting_env):
    with pytest.raises(ArgumentError, match="pass replay_buffer="):
        Collector(counting_env, frames_per_batch=2).start()
    inside, go_on = threading.Event(), threading.Event()

    def policy(td):
        inside.set()
        assert go_on.wait(10)
        return td.set("action", torch.tensor(0))

    collector = Collector(counting_env, policy, frames_per_batch=2, replay_buffer=Buffer())
    collector.start()
    assert inside.wait(10)
    with pytest.raises(RLError, match=r"within 0\.05 s"):
        collector.async_shutdown(timeout=0.05)
    assert collector.env.closed == 0
    go_on.set()
    collector.async_shutdown()
    assert collector.env.closed == 1
