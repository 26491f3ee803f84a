"""`WorkerGroup`: processes that execute commands of their parent."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import select
import signal
import threading
import warnings
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any

import torch

from rl.core.arguments import one_of
from rl.core.errors import ArgumentError, WorkerError
from rl.core.workers._base import Descriptor, GroupBase, Undivided, WorkerState, failure_of, one_way
from rl.core.workers._serve import CLOSE, DONE, MESSAGE, serve


@dataclass(kw_only=True)
class _Worker(WorkerState):
    process: Any
    commands: Descriptor
    answers: Descriptor
    connection: Connection

    def close(self) -> None:
        self.connection.close()
        self.commands.close()
        self.answers.close()


_GROUPS: weakref.WeakSet[WorkerGroup] = weakref.WeakSet()
"""Groups of this process. A fork inherits the ends of their pipes, and their workers would not see the parent end."""


class WorkerGroup(GroupBase):
    """Processes that execute commands of their parent, each in the order in which they were sent.

    Each function of `makers` is called in a process of its own and returns a handler: an object with `commands`, a
    sequence of functions without arguments, with methods that are called by name, and with `close`. A command costs
    one byte each way; its data is in shared memory (`SharedLeaves`). A message is pickled.

    A worker ignores Ctrl-C, and ends when its parent closes the group or ends, even if it hangs in a step.

    Args:
        makers: Functions that create the handlers.
        owner: Name of the component in messages.
        start_method: ``fork``, ``spawn`` or ``forkserver``; fork where there is one if None. With the others the
            functions are pickled (with cloudpickle if pickle cannot), and a script guards its top level with
            ``if __name__ == "__main__"``.
        daemon: Whether the workers are daemonic: they end with this process, and have no processes of their own other
            than those of a `WorkerGroup`.
        num_threads: Threads of torch in each worker. With several, a fork executes commands in a thread of its own: in
            the one that was forked OpenMP would wait for threads of the parent for ever.
        timeout: Seconds after which a missing answer is an error; None for no limit.
        shutdown_timeout: Seconds after which `close` kills the workers.

    Raises:
        ArgumentError: If there is no such start method, or a function cannot be pickled for it.
        WorkerError: If a handler cannot be created.

    Example:
        >>> class Adder:
        ...     commands = ()
        ...     def add(self, a, b):
        ...         return a + b
        ...     def close(self):
        ...         pass
        >>> with WorkerGroup([Adder, Adder], owner="example") as workers:
        ...     workers.call(1, "add", 2, 3)
        5
    """

    def __init__(
        self,
        makers: Sequence[Callable[[], Any]],
        *,
        owner: str,
        start_method: str | None = None,
        daemon: bool = True,
        num_threads: int = 1,
        timeout: float | None = None,
        shutdown_timeout: float = 10.0,
    ) -> None:
        methods = multiprocessing.get_all_start_methods()
        self._method = ("fork" if "fork" in methods else "spawn") if start_method is None else start_method
        one_of(self._method, owner, "start_method", methods)
        super().__init__(owner, timeout)
        self._daemon, self._threads = daemon, num_threads
        self._makers = list(makers) if self._method == "fork" else [_pickled(*one, owner) for one in enumerate(makers)]
        self._numbers: dict[int, int] = {}  # index of the worker by file descriptor
        self._poll = select.poll()
        _GROUPS.add(self)
        self._finish = weakref.finalize(self, _stop, self._workers, shutdown_timeout, os.getpid())
        try:
            for index in range(len(self._makers)):
                self._workers.append(self._start(index))
            self.wait()
        except BaseException:
            self.close()
            raise

    # ---- life

    def restart(self, index: int) -> None:
        """Replace a worker by a new one, which creates its handler again; answers of the old one are lost."""
        old = self._workers[index]
        self._forget(index)
        old.process.kill()
        old.process.join()
        old.close()
        self._answered = [one for one in self._answered if one != index]
        self._ends = [one for one in self._ends if one != index]
        self._workers[index] = self._start(index)
        self.wait([index])

    def close(self) -> None:
        """End the workers: they close their handlers; those that take too long are killed. May be called twice."""
        self._finish()

    def _start(self, index: int) -> _Worker:
        context: Any = multiprocessing.get_context(self._method)
        theirs, commands = one_way()
        answers, answering = one_way()
        ours, connection = context.Pipe()
        forks = self._method == "fork"
        mine = [commands, answers, ours, *_ends_of_all()] if forks else []
        starts = self._method != "forkserver" and threading.current_thread() is threading.main_thread()
        ways = (os.getpid() if starts else None, forks and self._threads > 1)
        process = context.Process(
            target=serve,
            args=(self._makers[index], theirs, answering, connection, mine, self._threads, _seed_of(index), *ways),
            name=f"{self._owner} worker {index}",
            daemon=self._daemon,
        )
        with (
            _children_allowed(),
            warnings.catch_warnings(),
        ):  # Python warns of a fork in a process with threads; torch's hold no lock here
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        for end in (theirs, answering, connection):
            end.close()  # so that the end of the worker closes its pipes
        self._numbers[answers.number] = index
        self._poll.register(answers.number, select.POLLIN)
        return _Worker(process=process, commands=commands, answers=answers, connection=ours)

    def _post(self, index: int, command: int) -> None:
        try:
            os.write(self._workers[index].commands.number, command.to_bytes())
        except OSError:
            while self._read(index):  # read the answers that were sent before its end
                pass
            self._note_end(index)
            self._raise_failure(index)

    def _post_message(self, index: int, method: str, args: Sequence[Any]) -> None:
        message = pickle.dumps((method, args))
        self._post(index, MESSAGE)
        try:
            self._workers[index].connection.send_bytes(message)
        except OSError:
            self._note_end(index)
            self._raise_failure(index)
        except BaseException:  # the worker has a part of the message, and waits for the rest
            self._abandon(index)
            raise

    def _receive(self, limit: float | None) -> bool:
        wait = None if limit is None else max(0.0, limit - monotonic()) * 1e3
        ready = self._poll.poll(wait)
        with Undivided():
            for number, _ in ready:
                index = self._numbers[number]
                if self._read(index):
                    continue
                if not self._workers[index].failures:
                    self._note_end(index)
                self._forget(index)  # with a failure: its handler could not be created
        return bool(ready)

    def _read(self, index: int) -> bool:
        """Record an answer of a worker; False if there are no more."""
        worker = self._workers[index]
        byte = os.read(worker.answers.number, 1)
        if not byte:
            return False
        failed, content = byte != DONE, None
        if failed or worker.expected[0] is not False:
            try:
                message = worker.connection.recv_bytes()
            except EOFError:  # it was killed before it had sent it
                return False
            except BaseException:  # the rest would be read as the next result
                self._abandon(index)
                raise
            try:
                content = pickle.loads(message)  # pickled by our own worker
            except BaseException as error:  # raised by the result's class, or a second Ctrl-C
                name, text, trace = failure_of(error)
                failed, content = True, (name, f"{text} (while its result was unpickled)", trace)
                if not isinstance(error, Exception):
                    self._take(index, None, content)
                    raise
        self._take(index, content, content if failed else None)
        return True

    def _forget(self, index: int) -> None:
        number = self._workers[index].answers.number
        if self._numbers.pop(number, None) is not None:
            self._poll.unregister(number)

    def _abandon(self, index: int) -> None:
        """Kill a worker of which a message was read or written in part."""
        self._workers[index].process.kill()
        self._note_end(index, "it was stopped, since a message was cut off")

    def _note_end(self, index: int, how: str | None = None) -> None:
        """Record that a worker is no more; `how` is read from its exit code if None."""
        self._forget(index)
        worker = self._workers[index]
        if worker.end is not None:
            return
        worker.expected.clear()
        with suppress(AssertionError):
            worker.process.join(1.0)
        how = _end_text(worker.process.exitcode) if how is None else how
        error = WorkerError(f"{self._owner}: worker {index} has ended ({how}). Close this object and create a new one")
        error.worker, error.ended = index, True
        worker.end = error
        self._ends.append(index)


def _end_text(code: int | None) -> str:
    """How a process has ended, for a message."""
    if code is None:
        return "it has closed its pipe"
    if code >= 0:
        return f"exit code {code}; what it printed may say why"
    name = next((one.name for one in signal.Signals if one == -code), str(-code))
    return f"signal {name}" + ("; the system kills processes where memory runs out" if -code == signal.SIGKILL else "")


def _ends_of_all() -> list[Any]:
    """Return the parent's ends of the pipes of all workers of this process."""
    workers: list[_Worker] = [worker for group in _GROUPS for worker in group._workers]  # noqa: SLF001
    return [end for worker in workers for end in (worker.commands, worker.answers, worker.connection)]


@contextmanager
def _children_allowed() -> Generator[None]:
    """Let a daemonic process start workers, which multiprocessing rejects: they could outlive it. These end with it."""
    config: Any = getattr(multiprocessing.current_process(), "_config", {})
    daemon = config.get("daemon")
    config["daemon"] = False
    try:
        yield
    finally:
        config["daemon"] = daemon


def _seed_of(index: int) -> int:
    """Return the seed of a worker: that of this process, and its number."""
    return hash((torch.initial_seed(), index)) & ((1 << 62) - 1)


def _pickled(index: int, make: Callable[[], Any], owner: str) -> bytes:
    try:
        return pickle.dumps(make)
    except Exception as first:  # noqa: BLE001  # whatever an object raises
        error, remedy = first, "install cloudpickle"
        with suppress(ImportError):
            import cloudpickle

            remedy = "use start method 'fork'"
            try:
                return cloudpickle.dumps(make)
            except Exception as second:  # noqa: BLE001
                error = second
        raise ArgumentError(
            f"{owner}: what worker {index} is made of, such as its functions and policy, is sent to a new process, and"
            f" cannot be pickled ({error}). Create open files and locks in the worker, or {remedy}"
        ) from error


def _stop(workers: list[_Worker], timeout: float, parent: int) -> None:
    """End the workers of a group; nothing in a fork, whose parent they have."""
    if os.getpid() != parent:
        return
    for worker in workers:
        with suppress(OSError):
            os.write(worker.commands.number, CLOSE.to_bytes())
    limit = monotonic() + timeout
    for worker in workers:
        worker.process.join(max(0.0, limit - monotonic()))
    for worker in workers:
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.process.close()
        worker.close()
    workers.clear()
