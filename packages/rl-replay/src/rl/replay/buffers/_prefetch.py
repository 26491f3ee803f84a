"""Queue of prefetched batches: sampled in the caller's thread, gathered and transformed in another."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

__all__ = ["Batch", "Flight"]

Batch = tuple[Any, dict[Any, Any]]
"""Data and info of a sample."""


class _InFlight:
    """A batch in preparation.

    Args:
        last: whether it ends a pass of the sampler.
    """

    def __init__(self, *, last: bool) -> None:
        self.last = last
        self.gathered = threading.Event()
        self.future: Future[Batch] = Future()


class Flight:
    """Queue of prefetched batches in the order of sampling.

    Args:
        depth: number of batches that are prefetched, and of threads.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._queue: deque[_InFlight] = deque()
        self._reading: deque[_InFlight] = deque()  # including batches that were taken before their rows were read
        self._pool: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return len(self._queue)

    def wants_more(self, *, within_pass: bool) -> bool:
        """Whether to sample another batch before one is taken."""
        if within_pass and self._queue and self._queue[-1].last:
            return False
        return len(self._queue) <= self.depth

    def submit(self, gather: Callable[[], Any], finish: Callable[[Any], Batch], *, last: bool) -> None:
        """Prepare a batch: `gather` reads the storage, `finish` does not."""
        item = _InFlight(last=last)

        def work() -> None:
            try:
                try:
                    rows = gather()
                finally:
                    item.gathered.set()
                item.future.set_result(finish(rows))
            except BaseException as error:  # noqa: BLE001  raised again by `take`
                item.future.set_exception(error)

        if self.depth == 0:
            work()
        else:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.depth, thread_name_prefix="rl-replay")
            self._pool.submit(work)
        while self._reading and self._reading[0].gathered.is_set():
            self._reading.popleft()
        self._reading.append(item)
        self._queue.append(item)

    def land(self, batch: Batch, *, last: bool) -> None:
        """Append a finished batch."""
        item = _InFlight(last=last)
        item.gathered.set()
        item.future.set_result(batch)
        self._queue.append(item)

    def take(self) -> tuple[Future[Batch], bool]:
        """The oldest batch, and whether it ended a pass."""
        item = self._queue.popleft()
        return item.future, item.last

    def wait_gathered(self) -> None:
        """Wait until every prefetched batch has gathered its rows."""
        while self._reading:
            self._reading.popleft().gathered.wait()

    def results(self) -> list[tuple[Batch, bool]]:
        """All prefetched batches; waits for them."""
        return [(item.future.result(), item.last) for item in self._queue]

    def clear(self) -> None:
        """Discard the prefetched batches."""
        self.wait_gathered()
        self._queue.clear()
