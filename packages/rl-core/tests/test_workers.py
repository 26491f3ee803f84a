"""Worker processes: commands, results, and every way in which a worker can be lost."""

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial

import pytest
import torch

from rl.core.errors import SpecError, WorkerError, WorkerTimeoutError
from rl.core.workers import SharedLeaves, ThreadGroup, WorkerGroup, layout_of


class Handler:
    def __init__(self, shared=None, number=0):
        self.commands = (self.count, self.fail, self.sleep)
        self.shared, self.number = shared, number

    def map(self, layout):
        self.row = self.shared.map(layout)["row"][self.number]

    def count(self):
        self.row += 1

    def fail(self):
        raise ValueError("broken simulator")

    def sleep(self, seconds=30):
        time.sleep(seconds)

    def wait(self):
        assert self.shared.wait(60)

    def echo(self, value):
        return value

    def random(self):
        return torch.rand(3)

    def pid(self):
        return os.getpid()

    def close(self):
        pass


def pair(group=WorkerGroup, **kwargs):
    return group([Handler, Handler], owner="Pair", **kwargs)


BOTH = pytest.mark.parametrize("group", [WorkerGroup, ThreadGroup])


def descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_commands_results_and_shared_memory(method):
    before = descriptors()
    shared = SharedLeaves()
    layout = layout_of({"row": torch.zeros(2, 3), "empty": torch.zeros(0, dtype=torch.bool)}, "test")
    rows = shared.map(layout)["row"]
    with WorkerGroup([partial(Handler, shared, i) for i in range(2)], owner="Pair", start_method=method) as workers:
        assert workers.call_all("map", layout) == [None, None]
        for _ in range(3):
            workers.send(1, 0)
        workers.send(0, 0)
        workers.wait()
        assert rows.tolist() == [[1.0] * 3, [3.0] * 3]
        large = torch.arange(2_000_000)  # larger than what a pipe holds
        assert torch.equal(workers.call(0, "echo", large), large)
        workers.request(0, "echo", 1)
        workers.request(0, "echo", 2)
        assert (workers.result(0), workers.result(0)) == (1, 2)
        first, second = workers.call_all("random")
        assert not torch.equal(first, second)
    shared.close()
    del rows  # its mapping holds a descriptor
    if method == "fork":  # others keep a server
        assert descriptors() == before


@BOTH
def test_answers_come_in_the_order_of_the_workers_that_give_them(group):
    gate = multiprocessing.Event()
    with group([partial(Handler, gate)] * 2, owner="Pair") as workers:
        workers.request(0, "wait")
        workers.request(1, "echo", "b")
        assert workers.wait_any() == [1]
        assert workers.wait_any(timeout=0.01) == []
        gate.set()
        assert workers.wait_any() == [0]
        assert workers.result(1) == "b"


@BOTH
def test_an_exception_of_a_worker_is_raised_with_its_traceback_and_the_group_goes_on(group):
    with pair(group) as workers:
        workers.send(1, 1)
        with pytest.raises(
            WorkerError, match=r"Pair: worker 1 raised ValueError: broken simulator\n\nTraceback[^$]*in fail"
        ):
            workers.wait()
        assert workers.call_all("echo", 5) == [5, 5]
        workers.send(1, 1)
        workers.request(0, "echo", 6)
        with pytest.raises(WorkerError, match="worker 1 raised"):
            workers.wait_any(2)
        assert (workers.wait_any(), workers.result(0)) == ([0], 6)  # no answer is lost
        for _ in range(2):
            workers.send(1, 1)
        for _ in range(2):
            with pytest.raises(WorkerError, match="worker 1 raised"):
                workers.wait_any()
        assert workers.wait_any(timeout=0.01) == []
    with pytest.raises(WorkerError, match="worker 0 raised ZeroDivisionError"):
        group([lambda: 1 / 0, lambda: time.sleep(0.3) or Handler()], owner="Pair")


def test_a_killed_worker_is_noticed_at_once_and_can_be_replaced():
    with pair() as workers:
        victim = workers.call(1, "pid")
        workers.request(1, "sleep", 60)
        os.kill(victim, signal.SIGKILL)
        start = time.monotonic()
        with pytest.raises(WorkerError, match=r"worker 1 has ended \(signal SIGKILL\)"):
            workers.wait()
        assert time.monotonic() - start < 2
        with pytest.raises(WorkerError, match="worker 1 has ended"):
            workers.send(1, 0)
        workers.restart(1)
        assert workers.call(1, "pid") != victim
        assert workers.call_all("echo", 1) == [1, 1]


def test_a_worker_that_hangs_is_an_error_and_is_killed_by_close():
    workers = pair(timeout=2, shutdown_timeout=0.2)  # also for their start
    pids = workers.call_all("pid")
    workers.send(0, 2)
    with pytest.raises(WorkerError, match=r"no answer of worker 0 within 2 s"):
        workers.wait()
    start = time.monotonic()
    workers.close()
    workers.close()
    assert time.monotonic() - start < 5
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_thread_that_hangs_is_an_error_and_does_not_keep_close_waiting():
    workers = pair(ThreadGroup, timeout=0.5, shutdown_timeout=0.1)
    workers.request(0, "sleep", 30)
    with pytest.raises(WorkerTimeoutError, match=r"no answer of worker 0 within 0\.5 s"):
        workers.wait()
    start = time.monotonic()
    workers.close()
    assert time.monotonic() - start < 10


def test_functions_that_cannot_be_sent_are_refused():
    class Local:
        def __reduce__(self):
            raise TypeError("never")

        def __call__(self):
            return Handler()

    with pytest.raises((SpecError, TypeError), match="never"):
        WorkerGroup([Local()], owner="Pair", start_method="spawn")
    with pytest.raises(SpecError, match="start method 'thread' is not one of"):
        WorkerGroup([Handler], owner="Pair", start_method="thread")


SCRIPT = textwrap.dedent("""
    import os, signal, sys, time
    from rl.core.workers import WorkerGroup

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background process ignores it

    class Handler:
        commands = ()
        def pid(self): return os.getpid()
        def close(self): pass

    workers = WorkerGroup([Handler, Handler, Handler], owner="Script")
    try:
        print(*workers.call_all("pid"), flush=True)
        time.sleep(60)
    finally:
        print("cleaned up", flush=True)
""")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_their_parent(number):
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as parent:
        pids = [int(word) for word in parent.stdout.readline().split()]
        if number == signal.SIGINT:
            os.killpg(parent.pid, number)  # as a terminal does: to the workers as well
        else:
            parent.send_signal(number)
        out, err = parent.communicate(timeout=60)
    if number == signal.SIGINT:
        assert out == "cleaned up\n"
        assert err.count("Traceback") == 1
    limit = time.monotonic() + 30
    while any(os.path.exists(f"/proc/{pid}") for pid in pids):
        assert time.monotonic() < limit
        time.sleep(0.05)


def test_a_group_that_is_dropped_ends_its_workers():
    workers = pair()
    pids = workers.call_all("pid")
    del workers
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@BOTH
def test_results_of_a_call_that_failed_are_not_those_of_the_next_one(group):
    class Fails(Handler):
        def echo(self, value):
            if value == "bad":
                raise ValueError(value)
            return value

    with group([Handler, Fails, Handler], owner="Three") as workers:
        for _ in range(2):
            with pytest.raises(WorkerError, match="worker 1 raised ValueError: bad"):
                workers.call_all("echo", "bad")
            assert workers.call_all("echo", "good") == ["good"] * 3
        assert workers.call_each("echo", [(1,), (2,), (3,)]) == [1, 2, 3]


def test_what_a_worker_answered_before_it_was_killed_is_not_lost():
    with pair() as workers:
        pid = workers.call(1, "pid")
        workers.request(1, "echo", "kept")
        workers.request(1, "sleep", 60)
        while workers.busy != [1] or len(workers._workers[1].expected) > 1:
            workers._receive(None)
        os.kill(pid, signal.SIGKILL)
        workers._workers[1].process.join()
        with pytest.raises(WorkerError, match="worker 1 has ended"):
            workers.send(1, 0)
        assert workers.wait_any(1, 0.0) == [1]


@pytest.mark.parametrize("known", [True, False])
def test_a_worker_that_is_killed_while_it_sends_a_result_has_ended(known):
    class Dies(Handler):
        def die(self):
            os.kill(os.getpid(), signal.SIGKILL)

    with WorkerGroup([Dies], owner="One") as workers:
        workers.request(0, "die")
        with pytest.raises(WorkerError, match="worker 0 has ended"):
            workers.result(0) if known else workers.wait_any()
