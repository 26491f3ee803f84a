"""`MultiAsyncCollector`: batches of single workers, which collect while the caller learns."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import inf
from time import monotonic
from typing import Any

from tensordict import TensorDictBase

from rl.collectors.multi._processes import MultiBase
from rl.collectors.multi._worker import COLLECT, SLOTS
from rl.core.errors import WorkerError, WorkerTimeoutError

__all__ = ["MultiAsyncCollector"]


class MultiAsyncCollector(MultiBase):
    """Collector that yields the batch of the worker process that is ready first, while all continue to collect.

    A worker collects at most two batches ahead. What was collected before a worker ended, or hung longer than
    `timeout`, is yielded before that is an error; ``policy_version`` int64 in a batch is the number of weight updates
    that the worker had when it began it. Batches are ``[*B, T]``. The arguments are those of `MultiSyncCollector`
    without `cat_results`; `frames_per_batch` is that of one worker.

    Example:
        >>> from rl.core.testing import CountingEnv
        >>> with MultiAsyncCollector([CountingEnv] * 2, frames_per_batch=4, total_frames=12) as collector:
        ...     sum(batch.numel() for batch in collector)
        12
    """

    _ahead = True

    def __init__(
        self, create_env_fn: Any = None, policy: Any = None, *, frames_per_batch: int, **settings: Any
    ) -> None:
        super().__init__(create_env_fn, policy, frames_per_batch=frames_per_batch, **settings)
        self._begin_count()

    def _begin_count(self) -> None:
        count = len(self._workers)
        self._requested = [0] * count  # batches requested of each worker
        self._taken = [0] * count  # those of them that were returned or dropped
        self._ready: list[int] = []  # workers with a batch, in the order of their batches
        self._since = [monotonic()] * count  # time of the last answer
        self._reading = -1  # the worker of the last batch

    def _share(self, frames: int, workers: int) -> int:
        del workers
        return frames

    def _frames_of(self, sizes: Sequence[int]) -> int:
        return sizes[0]

    def _next(self) -> TensorDictBase:
        if self._layout is None:
            self._begin()
            self._requested = [1] * len(self._workers)
            self._ready = [*range(len(self._workers))]
        self._receive(0)
        self._request_all()
        while not self._ready:
            self._raise_loss()
            self._receive(1)
        index = self._ready.pop(0)
        entries = {key: leaf[index] for key, leaf in self._slots[self._taken[index] % SLOTS].items()}
        self._taken[index] += 1
        self._reading = index
        return self._tensordict(self._own(entries), self._size)

    def _next_parts(self) -> list[tuple[int, TensorDictBase]]:
        batch = self._next()
        return [(self._reading, batch)]

    def _running(self, index: int) -> int:
        """Batches that a worker has yet to complete."""
        return self._requested[index] - self._taken[index] - self._ready.count(index)

    def _receive(self, count: int) -> None:
        """Note which workers have completed batches, and wait for `count`, until one is late or has ended."""
        limit = min((self._deadline(i) for i in range(len(self._workers)) if self._running(i)), default=inf)
        try:
            found = self._workers.wait_any(count, None if limit == inf else max(0.0, limit - monotonic()))
        except WorkerError as error:
            if not error.ended:
                if error.worker is not None:
                    self._requested[error.worker] -= 1
                raise
            found = []
        for index in found:
            self._ready.append(index)
            self._since[index] = monotonic()
        for index in self._workers.lost:
            self._requested[index] = self._taken[index] + self._ready.count(index)

    def _loss(self) -> WorkerError | None:
        """The error of a worker that has ended and is not replaced, or is late."""
        if self._workers.lost and not self._restart:
            return next(iter(self._workers.lost.values()))
        late = [str(i) for i in range(len(self._workers)) if self._running(i) and monotonic() >= self._deadline(i)]
        if not late:
            return None
        return WorkerTimeoutError(
            f"MultiAsyncCollector: no answer of worker {', '.join(late)} within {self._timeout} s. Shut it down, and"
            " allow more time with timeout= if the simulator is only slow"
        )

    def _deadline(self, index: int) -> float:
        return inf if self._timeout is None else self._since[index] + self._timeout

    def _raise_loss(self) -> None:
        loss = self._loss()
        if loss is not None:
            raise loss.with_traceback(None)

    def _request_all(self) -> None:
        """Let all workers collect as many batches as there is memory for; none if one is lost."""
        if self._loss() is None:
            self._renew_all()
            for index in range(len(self._workers)):
                while index not in self._workers.lost and self._requested[index] < self._taken[index] + SLOTS:
                    self._request(index)

    def _request(self, index: int) -> None:
        with suppress(WorkerError):  # it is in `lost`
            self._workers.send(index, COLLECT)
            if not self._running(index):
                self._since[index] = monotonic()
            self._requested[index] += 1

    def _renew_all(self) -> None:
        for index, error in self._workers.lost.items():
            self._renew(error, self._requested[index] % SLOTS)

    def _release(self) -> None:
        if self._loss() is None:
            self._request(self._reading)

    def _idle(self, *, keep: bool = False) -> None:
        self._receive(0)
        while running := sum(map(self._running, range(len(self._workers)))):
            self._raise_loss()
            self._receive(running)
        self._raise_loss()
        if not keep:
            self._ready = []
            self._taken = [*self._requested]
        self._renew_all()
