"""`MultiAsyncCollector`: batches of single workers, which collect while the caller learns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensordict import TensorDictBase

from rl.collectors.multi._base import MultiBase
from rl.collectors.multi._worker import COLLECT, SLOTS
from rl.core.errors import WorkerError

__all__ = ["MultiAsyncCollector"]


class MultiAsyncCollector(MultiBase):
    """Collector that yields the batch of one worker process, the one that is ready first, while all go on collecting.

    A worker collects at most two batches ahead; ``policy_version`` int64 in a batch is the number of weight updates
    that the worker had when it began it. Batches are ``[*B, T]``. The arguments are those of `MultiSyncCollector`
    without `cat_results`; `frames_per_batch` is that of one worker.

    Example:
        >>> from rl.core.testing import CountingEnv
        >>> with MultiAsyncCollector([CountingEnv] * 2, frames_per_batch=4, total_frames=12) as collector:
        ...     sum(batch.numel() for batch in collector)
        12
    """

    def __init__(
        self, create_env_fn: Any = None, policy: Any = None, *, frames_per_batch: int, **settings: Any
    ) -> None:
        super().__init__(create_env_fn, policy, frames_per_batch=frames_per_batch, **settings)
        self._asked = [0] * len(self._workers)  # batches that each worker was told to collect
        self._taken = [0] * len(self._workers)  # those of them that were returned or dropped
        self._ready: list[int] = []  # workers with a batch, in the order of their batches
        self._reading = -1  # the worker of the last batch

    def _share(self, frames: int, workers: int) -> int:
        del workers
        return frames

    def _frames_of(self, sizes: Sequence[int]) -> int:
        return sizes[0]

    def _next(self) -> TensorDictBase:
        if self._asked == self._taken:
            self._start()
        while not self._ready:
            try:
                self._ready = self._workers.wait_any()
            except WorkerError as error:
                self._replace(error)
        index = self._ready.pop(0)
        entries = {key: leaf[index] for key, leaf in self._slots[self._taken[index] % SLOTS].items()}
        self._taken[index] += 1
        self._reading = index
        return self._tensordict(self._own(entries), self._size)

    def _start(self) -> None:
        """Let all workers collect as many batches as there is memory for."""
        everyone = range(len(self._workers))
        if self._layout is None:
            self._begin()
            self._asked = [1] * len(self._workers)
            self._ready = [*everyone]
        for index in everyone:
            while self._asked[index] < self._taken[index] + SLOTS:
                self._ask(index)

    def _ask(self, index: int) -> None:
        try:
            self._workers.send(index, COLLECT)
        except WorkerError as error:
            self._replace(error)
        else:
            self._asked[index] += 1

    def _replace(self, error: WorkerError) -> None:
        index = self._again(error, 0)
        self._ready = [one for one in self._ready if one != index] + [index]
        self._taken[index], self._asked[index] = 0, 1
        self._ask(index)

    def _release(self) -> None:
        self._ask(self._reading)

    def _idle(self) -> None:
        self._workers.wait()
        self._ready = []
        self._taken = [*self._asked]
