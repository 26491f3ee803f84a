"""Worker processes: commands, results, and every way in which a worker can be lost."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from functools import partial

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import ArgumentError, ShapeError, WorkerError, WorkerTimeoutError

# the patience with workers that hang, in `_base`, is shortened
from rl.core.workers import SharedLeaves, ThreadGroup, WorkerGroup, _base, layout_of, write_leaves
from rl.testing import interrupt_at


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
        with pytest.raises(WorkerError, match=r"worker 1 has ended \(signal SIGKILL; "):
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

    with pytest.raises((ArgumentError, TypeError), match="never"):
        WorkerGroup([Local()], owner="Pair", start_method="spawn")
    with pytest.raises(ArgumentError, match=r"start_method must be .*, got 'thread'"):
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


def test_an_argument_that_cannot_be_pickled_leaves_no_result_for_the_next_call():
    with pair() as workers:
        with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
            workers.call_each("echo", [(1,), (lambda: 0,)])
        assert workers.call_all("echo", 2) == [2, 2]


@BOTH
def test_an_error_in_a_wait_that_is_none_of_a_worker_leaves_no_result_for_the_next_call(group, monkeypatch):
    with pair(group) as workers:
        for call in (partial(workers.call, 0), partial(workers.call_all)):
            with monkeypatch.context() as patch, warnings.catch_warnings(action="error"):
                patch.setattr(_base, "PATIENCE", 0.05)
                with pytest.raises(UserWarning, match="there is no timeout"):
                    call("sleep", 0.3)
            assert workers.call_all("echo", 2) == [2, 2]


class Unreadable:
    """Its pickle raises an exception when it is read."""

    def __init__(self, error):
        self.error = error

    def __reduce__(self):
        return _raise, (self.error,)


def _raise(error):
    raise error


def test_a_result_that_cannot_be_unpickled_is_a_failure_of_its_command_alone():
    class Odd(Handler):
        def odd(self):
            return Unreadable(ValueError("no such thing"))

    with WorkerGroup([Odd, Odd], owner="Pair") as workers:
        pids = workers.call_all("pid")
        for call in (partial(workers.call, 0), partial(workers.call_all)):
            with pytest.raises(WorkerError, match=r"worker 0 raised ValueError: no such thing .*unpickled"):
                call("odd")
            assert workers.call_all("pid") == pids


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


def test_entries_of_another_form_than_the_prepared_memory_are_refused_before_any_is_written():
    places = {"a": torch.zeros(2), ("b", "c"): torch.zeros(3, 2)}
    for wrong in (torch.ones(1, 2), torch.ones(3, 2, dtype=torch.float64), torch.ones(3, 1), None, 1.0):
        with pytest.raises(ShapeError, match=r"owner: \('b', 'c'\) is .*expected float32 \[3, 2\]"):
            write_leaves(places, {"a": torch.ones(2), ("b", "c"): wrong}, "owner")
    assert [place.sum().item() for place in places.values()] == [0, 0]
    write_leaves(places, {"a": torch.ones(2), "other": torch.ones(1)}, "owner")
    write_leaves(places, TensorDict({"b": {"c": torch.ones(1, 2)}}, batch_size=[]), "owner", torch.tensor([1]))
    assert places["a"].tolist() == [1, 1]
    assert places["b", "c"].tolist() == [[0, 0], [1, 1], [0, 0]]
    with pytest.raises(ShapeError, match=r"expected float32 \[1, 2\]"):
        write_leaves(places, {("b", "c"): torch.ones(2, 2)}, "owner", torch.tensor([1]))


class Echo:
    def __init__(self):
        self.commands = (self.count,)
        self.total = 0

    def count(self):
        self.total += 1

    def echo(self, value):
        return value

    def counted(self):
        return self.total

    def close(self):
        pass


@pytest.mark.parametrize("kind", [WorkerGroup, ThreadGroup])
def test_a_call_after_ctrl_c_at_any_line_of_another_returns_its_own_results(kind):
    with kind([Echo] * 2, owner="group", timeout=20) as group:
        line = 0
        while interrupt_at(lambda: group.call_all("echo", "old"), line := line + 1, ["rl/core/workers/"]):
            assert group.call_all("echo", line) == [line] * 2
            assert group.call(1, "echo", -line) == -line
        assert line > 30


@pytest.mark.parametrize("kind", [WorkerGroup, ThreadGroup])
def test_commands_after_ctrl_c_at_any_line_are_counted_once(kind):
    with kind([Echo] * 2, owner="group", timeout=20) as group:

        def both():
            group.send(0, 0)
            group.send(1, 0)
            group.wait()

        line = 0
        while interrupt_at(both, line := line + 1, ["rl/core/workers/"]):
            before = group.call_all("counted")
            group.settle()
            assert group.busy == []
            both()
            assert group.call_all("counted") == [count + 1 for count in before]
        assert line > 20


def test_a_second_ctrl_c_ends_a_wait_that_the_first_one_does_not():
    with WorkerGroup([Echo] * 2, owner="group", timeout=20) as group:
        connection = group._workers[0].connection

        class Stuck:
            def recv_bytes(self):
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)

            def __getattr__(self, name):
                return getattr(connection, name)

        group._workers[0].connection = Stuck()
        with pytest.raises(KeyboardInterrupt):
            group.call_all("echo", 1)
        with pytest.raises(WorkerError, match=r"worker 0 has ended \(it was stopped, since a message was cut off\)"):
            group.call_all("echo", 2)
        assert group.call(1, "echo", 3) == 3


HANGS = textwrap.dedent("""
    import os, sys, time
    from concurrent.futures import ThreadPoolExecutor
    from rl.core.workers import WorkerGroup

    class Handler:
        def __init__(self): self.commands = (self.hang,)
        def hang(self): time.sleep(1e6)
        def pid(self): return os.getpid()
        def close(self): pass

    if __name__ == "__main__":
        def make(): return WorkerGroup([Handler, Handler], owner="Script", start_method=sys.argv[1])
        if sys.argv[2] == "thread":
            with ThreadPoolExecutor() as pool: groups = [pool.submit(make).result() for _ in "ab"]
        else:
            groups = [make(), make()]
        print(*[pid for group in groups for pid in group.call_all("pid")], flush=True)
        groups[0].send(1, 0)
        time.sleep(60)
""")


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="reads /proc")
@pytest.mark.parametrize("thread", ["main", "thread"])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_end_when_their_parent_is_killed_while_one_hangs(method, thread, tmp_path):
    (tmp_path / "script.py").write_text(HANGS)
    command = [sys.executable, tmp_path / "script.py", method, thread]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        pids = [int(word) for word in parent.stdout.readline().split()]
        time.sleep(0.1)  # the command arrives
        parent.kill()
    assert len(pids) == 4
    limit = time.monotonic() + 20
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < limit
        time.sleep(0.02)


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_memory_that_is_dropped_leaves_no_file():
    memory = SharedLeaves()
    number = memory._file.number
    leaves = memory.map({"a": ((2,), torch.float32)})
    del memory
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)
    assert leaves["a"].tolist() == [0, 0]


OPENMP = textwrap.dedent("""
    import torch
    from rl.core.workers import WorkerGroup

    class Handler:
        commands = ()
        def product(self):
            x = torch.ones(600, 600)
            return float((x @ x).exp().clamp(max=1).sum()), torch.get_num_threads()
        def close(self): pass

    torch.set_num_threads(2)
    Handler().product()
    with WorkerGroup([Handler] * 2, owner="Script", start_method="fork", num_threads=2, timeout=30) as workers:
        print(workers.call_all("product"))
""")


def test_forks_with_several_threads_do_not_wait_for_those_of_their_parent():
    done = subprocess.run([sys.executable, "-c", OPENMP], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "[(360000.0, 2), (360000.0, 2)]", done.stderr


@BOTH
def test_a_long_wait_without_a_limit_warns_once_of_those_it_waits_for_and_goes_on(group, monkeypatch):
    monkeypatch.setattr(_base, "PATIENCE", 0.1)
    with group([Handler] * 2, owner="Pair") as workers, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        workers.request(0, "sleep", 1.0)
        workers.call(1, "sleep", 0.5)
        texts = [str(one.message) for one in caught]
        assert len(texts) == 1
        assert "no answer of worker 1 for 0.1 s, and there is no" in texts[0]


def test_a_group_of_threads_keeps_nothing_of_answers_that_were_read():
    with ThreadGroup([Handler] * 4, owner="Four") as workers:
        for _ in range(20):
            for index in range(4):
                workers.request(index, "echo", 1)
            time.sleep(0.01)  # the answers are there before they are waited for
            assert [workers.result(index) for index in range(4)] == [1] * 4
        assert workers._calls.qsize() <= 4


def test_a_daemonic_worker_may_have_workers():
    class Outer(Handler):
        def __init__(self):
            super().__init__()
            self.inner = WorkerGroup([Echo] * 2, owner="inner")

        def echo(self, value):
            return self.inner.call_all("echo", value)

        def close(self):
            self.inner.close()

    with WorkerGroup([Outer] * 2, owner="outer") as workers:
        assert workers.call_all("echo", 3) == [[3, 3], [3, 3]]
