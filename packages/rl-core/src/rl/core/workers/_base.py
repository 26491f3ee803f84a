"""Base class of groups of processes and of threads that execute commands."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing.reduction import DupFd
from time import monotonic
from typing import Any, Self

from rl.core.errors import WorkerError, WorkerTimeoutError, issue_warning

PATIENCE = 60.0
"""Seconds after which a wait without a limit warns."""

Failure = tuple[str, str, str]
"""Type, message and traceback of an exception."""


def failure_of(error: BaseException) -> Failure:
    """Describe an exception that is being handled, also one whose ``str()`` raises."""
    try:
        text = str(error)
    except Exception as other:  # noqa: BLE001  # whatever an object raises
        text = f"(its str() raised {type(other).__name__})"
    return type(error).__name__, text, traceback.format_exc()


# `signal.signal` makes enums of its arguments, which takes 3 microseconds instead of 0.3.
_signal: Any = import_module("_signal")


class Undivided:
    """Context in which Ctrl-C waits until the end, so that what is sent and what is noted about it agree.

    It is short and does not wait for other processes. If it waits nevertheless, a second Ctrl-C ends it.
    """

    __slots__ = ("_came", "_handler")

    def __enter__(self) -> None:
        self._handler: Any = None
        self._came: tuple[Any, Any] | None = None
        if threading.get_ident() != threading.main_thread().ident:
            return  # only the main thread is interrupted
        handler = _signal.getsignal(signal.SIGINT)
        if callable(handler):
            self._handler = handler
            _signal.signal(signal.SIGINT, self._note)

    def __exit__(self, *_: object) -> None:
        if self._handler is None:
            return
        _signal.signal(signal.SIGINT, self._handler)
        if self._came is not None:
            self._handler(*self._came)

    def _note(self, number: Any, frame: Any) -> None:
        if self._came is not None:
            self._handler(number, frame)
        self._came = (number, frame)


@dataclass(kw_only=True)
class WorkerState:
    """Answers of one worker."""

    expected: deque[bool | None] = field(default_factory=lambda: deque([False]))
    """For each command without an answer whether a result comes with it, or None for one that is dropped; the
    first answer is that of the start."""
    results: deque[Any] = field(default_factory=deque)
    failures: deque[Failure] = field(default_factory=deque)
    """Exceptions that were not raised yet."""
    end: WorkerError | None = None
    """The error that its process has ended."""


class GroupBase(ABC):
    """Workers that execute commands of their parent, each in the order in which they were sent.

    After an exception such as KeyboardInterrupt in a wait, what was sent is still answered: `call` and its like drop
    these answers, and who sends commands itself calls `wait` or `settle`.

    A subclass appends to `_workers` and defines `_post`, `_post_message`, `_receive` and `close`.

    Args:
        owner: Name of the component in messages.
        timeout: Seconds after which a missing answer is an error; None for no limit.
    """

    def __init__(self, owner: str, timeout: float | None) -> None:
        self._owner, self._timeout = owner, timeout
        self._workers: list[Any] = []
        self._answered: list[int] = []
        self._ends: list[int] = []  # workers that have ended, which `wait_any` has not raised yet

    def __len__(self) -> int:
        return len(self._workers)

    # ---- of the subclass

    @abstractmethod
    def _post(self, index: int, command: int) -> None:
        """Send the number of a command."""

    @abstractmethod
    def _post_message(self, index: int, method: str, args: Sequence[Any]) -> None:
        """Send a method call."""

    @abstractmethod
    def _receive(self, limit: float | None) -> bool:
        """Wait for answers and record them; False if there is none until the time `limit`."""

    @abstractmethod
    def close(self) -> None:
        """End the workers."""

    # ---- commands

    def send(self, index: int, command: int) -> None:
        """Let a worker execute function number `command` of its handler's `commands`.

        Raises:
            WorkerError: If the worker has ended.
        """
        with Undivided():
            self._post(index, command)
            self._workers[index].expected.append(False)

    def request(self, index: int, method: str, *args: Any) -> None:
        """Let a worker call a method of its handler; `result` returns what it returned.

        Raises:
            WorkerError: If the worker has ended.
        """
        with Undivided():
            self._post_message(index, method, args)
            self._workers[index].expected.append(True)

    def result(self, index: int) -> Any:
        """Wait for a worker, and return the oldest result that was not returned yet."""
        self.wait([index])
        return self._workers[index].results.popleft()

    def call(self, index: int, method: str, *args: Any) -> Any:
        """Call a method of a worker's handler and return its result."""
        try:
            self.request(index, method, *args)
            return self.result(index)
        except BaseException as error:
            if not isinstance(error, WorkerError) or isinstance(error, WorkerTimeoutError):  # an answer will come
                self.drop([index])
            raise

    def call_all(self, method: str, *args: Any) -> list[Any]:
        """Call a method of every worker's handler, all at once, and return the results."""
        return self.call_each(method, [args] * len(self))

    def call_each(self, method: str, arguments: Sequence[Sequence[Any]]) -> list[Any]:
        """Call a method of every worker's handler, all at once and each with its arguments, and return the results."""
        try:
            for index, args in enumerate(arguments):
                self.request(index, method, *args)
            self.wait()
            return [worker.results.popleft() for worker in self._workers]
        except BaseException:
            self.drop(range(len(self)))  # the results of the others belong to this call
            raise

    def settle(self) -> None:
        """Wait until no worker is busy, and drop all answers and failures: for who was interrupted.

        Raises:
            WorkerTimeoutError: If one takes longer than `timeout`.
        """
        everyone = range(len(self))
        self.drop(everyone)
        for index in everyone:  # one by one: one that has ended ends the wait for the others
            self._await([index])
        self.drop(everyone)
        self._answered.clear()

    def drop(self, indices: Iterable[int]) -> None:
        """Forget what workers have answered, and the results that are still to come."""
        with Undivided():
            for index in indices:
                worker = self._workers[index]
                worker.results.clear()
                worker.failures.clear()
                worker.expected = deque(None if wanted else wanted for wanted in worker.expected)

    @property
    def lost(self) -> dict[int, WorkerError]:
        """The workers whose processes have ended, each with its error."""
        return {index: worker.end for index, worker in enumerate(self._workers) if worker.end is not None}

    @property
    def busy(self) -> list[int]:
        """The workers that have not answered all that they were sent."""
        return [index for index, worker in enumerate(self._workers) if worker.expected]

    def wait(self, indices: Iterable[int] | None = None) -> None:
        """Wait until workers have answered all that they were sent.

        Args:
            indices: Workers; all if None.

        Raises:
            WorkerError: If one failed or ended.
            WorkerTimeoutError: If one takes longer than `timeout`.
        """
        wanted = range(len(self)) if indices is None else list(indices)
        self._await(wanted)
        self._answered = [index for index in self._answered if index not in wanted]
        for index in wanted:
            self._raise_failure(index)

    def _await(self, wanted: Sequence[int]) -> None:
        """Wait until workers have answered all that they were sent, or one of them has ended."""
        limit = None if self._timeout is None else monotonic() + self._timeout
        while any(self._workers[index].expected for index in wanted):
            if any(self._workers[index].end for index in wanted):
                break
            if not self._receive_in_time(limit, wanted):
                raise WorkerTimeoutError(
                    f"{self._owner}: no answer of {self._late(wanted)} within {self._timeout} s. Close it, and"
                    " allow more time with timeout= if the simulator is only slow"
                )

    def wait_any(self, count: int = 1, timeout: float | None = None) -> list[int]:
        """Wait until workers have given at least `count` answers that were not returned yet.

        Args:
            count: Number of answers.
            timeout: Seconds after which fewer answers are returned; no limit if None.

        Returns:
            The index of the worker of each answer, in their order.

        Raises:
            WorkerError: If one failed; the answers of the others are for the next call. If one ended, once, when there
                are no answers.
        """
        self.await_any(count, timeout)
        for index in self._answered:
            if self._workers[index].failures:  # the other answers are for the next call
                self._answered.remove(index)
                self._raise_failure(index)
        if self._ends and not self._answered:
            self._raise_failure(self._ends[0])
        found, self._answered = self._answered, []
        return found

    def await_any(self, count: int = 1, timeout: float | None = None) -> None:
        """Wait as `wait_any` does, which then returns at once. An interrupt of this wait loses no answer."""
        limit = None if timeout is None else monotonic() + timeout
        everyone = range(len(self))
        while self._receive_in_time(0.0 if self._ends or len(self._answered) >= count else limit, everyone):
            pass

    def _receive_in_time(self, limit: float | None, wanted: Sequence[int]) -> bool:
        """`_receive`, which names the late ones of `wanted` if it takes long and there is no limit."""
        if limit is not None or self._receive(monotonic() + PATIENCE):
            return limit is None or self._receive(limit)
        issue_warning(
            f"{self._owner}: no answer of {self._late(wanted)} for {PATIENCE:g} s, and there is no timeout. If it"
            " hangs, press Ctrl-C and close it; timeout= makes this an error"
        )
        return self._receive(None)

    def _late(self, wanted: Sequence[int]) -> str:
        """Those of `wanted` that have not answered, for a message; any worker if none of them was sent anything."""
        late = ", ".join(str(index) for index in wanted if self._workers[index].expected)
        return f"worker {late}" if late else "any worker"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self, index: int, result: Any, failure: Failure | None) -> None:
        """Record the answer of a worker."""
        worker = self._workers[index]
        wanted = worker.expected.popleft()
        self._answered.append(index)
        if wanted is not None and failure is not None:
            worker.failures.append(failure)
        elif wanted:
            worker.results.append(result)

    def _raise_failure(self, index: int) -> None:
        worker = self._workers[index]
        if worker.failures:
            name, text, trace = worker.failures.popleft()
            error = WorkerError(f"{self._owner}: worker {index} raised {name}: {text}\n\n{trace}")
            error.worker = index
            raise error
        if worker.end is not None:
            self._ends = [one for one in self._ends if one != index]
            raise worker.end.with_traceback(None)


class Descriptor:
    """A file descriptor that can be an argument of a process, with each start method.

    Args:
        number: Open descriptor.
    """

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _received, (DupFd(self.number),)

    def close(self) -> None:
        """Close it. May be called twice."""
        if self.number >= 0:
            os.close(self.number)
            self.number = -1


def _received(given: Any) -> Descriptor:
    return Descriptor(given.detach())


def one_way() -> tuple[Descriptor, Descriptor]:
    """Return the read end and the write end of a new pipe."""
    read, write = os.pipe()
    return Descriptor(read), Descriptor(write)
