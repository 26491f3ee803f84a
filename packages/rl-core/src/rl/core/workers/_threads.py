"""`ThreadGroup`: threads that execute commands."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any

from rl.core.workers._base import Failure, GroupBase, Undivided, WorkerState, failure_of

__all__ = ["ThreadGroup"]

Task = tuple[int | str, Sequence[Any]]
"""Number of a command, or name of a method and its arguments."""

Answer = tuple[int, Any, Failure | None]
"""Number of a worker, and its result or exception."""


@dataclass(kw_only=True)
class _Worker(WorkerState):
    thread: Thread
    tasks: SimpleQueue[Task | None]


class ThreadGroup(GroupBase):
    """Threads that execute commands: the methods of `WorkerGroup` in this process.

    Data is passed as it is. A thread cannot be killed: one that is stuck ends with the process.

    Args:
        makers: functions that make the handlers, each called in its thread.
        owner: names the component in messages.
        timeout: seconds after which a missing answer is an error; None for no limit.
        shutdown_timeout: seconds that `close` waits for the threads.

    Raises:
        WorkerError: if a handler cannot be made.
    """

    def __init__(
        self,
        makers: Sequence[Callable[[], Any]],
        *,
        owner: str,
        timeout: float | None = None,
        shutdown_timeout: float = 10.0,
    ) -> None:
        super().__init__(owner, timeout)
        self._answers: deque[Answer] = deque()
        self._calls: SimpleQueue[None] = (
            SimpleQueue()
        )  # one after each answer: an interrupt may lose what `get` returns
        self._finish = weakref.finalize(self, _stop, self._workers, shutdown_timeout)
        for index, make in enumerate(makers):
            tasks: SimpleQueue[Task | None] = SimpleQueue()
            thread = Thread(
                target=_serve,
                args=(make, index, tasks, self._answers, self._calls),
                name=f"{owner} worker {index}",
                daemon=True,
            )
            thread.start()
            self._workers.append(_Worker(thread=thread, tasks=tasks))
        try:
            self.wait()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the threads; their handlers are closed. May be called twice."""
        self._finish()

    def _post(self, index: int, command: int) -> None:
        self._workers[index].tasks.put((command, ()))

    def _post_message(self, index: int, method: str, args: Sequence[Any]) -> None:
        self._workers[index].tasks.put((method, args))

    def _receive(self, limit: float | None) -> bool:
        if not self._answers or not self._calls.empty():  # a token, also of an answer that was read before
            try:
                self._calls.get(timeout=None if limit is None else max(0.0, limit - monotonic()))
            except Empty:
                return False
        with Undivided():
            if self._answers:
                self._take(*self._answers.popleft())
        return True


def _serve(
    make: Callable[[], Any],
    index: int,
    tasks: SimpleQueue[Task | None],
    answers: deque[Answer],
    calls: SimpleQueue[None],
) -> None:
    """Make the handler and execute tasks until there is None."""
    handler: Any = None
    task: Task | None = ("", ())
    while task is not None:
        command, args = task
        result, failure = None, None
        try:
            if command == "":
                handler = make()
            elif isinstance(command, str):
                result = getattr(handler, command)(*args)
            else:
                handler.commands[command]()
        except BaseException as error:  # noqa: BLE001  # reported to the parent
            failure = failure_of(error)
        answers.append((index, result, failure))
        calls.put(None)
        task = tasks.get()
    if handler is not None:
        handler.close()


def _stop(workers: list[_Worker], timeout: float) -> None:
    limit = monotonic() + timeout
    for worker in workers:
        worker.tasks.put(None)
    for worker in workers:
        worker.thread.join(max(0.0, limit - monotonic()))
    workers.clear()
