"""`MultiAsyncCollector`: batches of single workers, which collect while the caller learns."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import ceil, inf
from time import monotonic
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from rl.collectors.multi._base import Interruptor, join_of
from rl.collectors.multi._processes import COLLECT, SLOTS, STEPS, MultiBase
from rl.core.arguments import as_number
from rl.core.errors import WorkerError, WorkerTimeoutError


class MultiAsyncCollector(MultiBase):
    """Collector that yields the batch of the worker process that is ready first, while all continue to collect.

    A worker collects at most two batches ahead. What was collected before a worker ended, or hung longer than
    `timeout`, is yielded before that is an error; ``policy_version`` int64 in a batch is the number of weight updates
    that the worker had when it began it. Batches are ``[*B, T]``. The arguments are those of `MultiSyncCollector`
    without `cat_results`; `frames_per_batch` is that of one worker.

    Example:
        >>> from rl.testing import CountingEnv
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
        """Return the error of a worker that has ended and is not replaced, or is late."""
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


class MultiSyncCollector(MultiBase):
    """Collector whose batches consist of one part of each worker process, collected at the same time.

    The data equals that of a `Collector` in each worker, bit by bit; trajectory ids differ between workers. The keys
    are those of `Collector`, and ``policy_version`` int64: the number of weight updates that the worker had.

    Args:
        create_env_fn: Functions that create the environments, one for each worker; or one function and `num_workers`.
        policy: A TensorDict module or function, of which every worker has a copy; random actions if None.
        frames_per_batch: Frames of a batch, over all workers; rounded up to full steps of each.
        total_frames: Frames after which iteration ends, rounded up to full batches; -1 for no end.
        cat_results: Form of a batch: ``"stack"`` for a batch ``[workers, *B, T]``; a dimension of the workers' batches
            ``[*B, T]`` along which they are concatenated, 0 or -1 (time). None for 0 if the batch extends a replay
            buffer, so that its rows are those of a `Collector`, and ``"stack"`` otherwise.
        preemptive_threshold: Share of the workers in (0, 1]; once that many have finished, the others end their batches
            early. A batch is then flat, ``[frames]``: the steps of one worker after those of another.
        env_fns: The same as `create_env_fn`.
        num_workers: Number of workers if there is one function.
        create_env_kwargs: Arguments of the functions, or a list of them.
        policy_factory: Function that creates the policy in the worker, or a list of them; takes the place of `policy`.
        num_workers_per_collector: 1.
        init_random_frames: Number of frames at the start with random actions, over all workers; None and -1 for none.
        postproc: Function that is applied to every batch; its result is yielded.
        split_trajs: Whether to split every batch with `split_trajectories`.
        update_at_each_batch: Whether to call `update_policy_weights_` before every batch.
        weight_updater: A `WeightUpdaterBase`, with which this collector is registered.
        trajs_per_batch: Number of full trajectories of a batch, see `Collector`; of all workers, in the order in which
            they end.
        traj_format: See `Collector`.
        replay_buffer: Buffer that is extended by every batch; None is yielded instead.
        extend_buffer: Whether a row of the buffer is a row of a worker's batch, as with a `Collector`. If false, it
            is a single step, in the order of time.
        restart: Whether to replace workers that have ended, with a warning; otherwise an error is raised.
        mp_start_method: Start method of the processes: ``fork``, ``spawn`` or ``forkserver``; fork where there is one
            if None.
        num_threads: Threads of torch in each worker.
        daemon: Whether workers are daemonic: they end with this process, and have no processes of their own other than
            those of a `ParallelEnv`.
        timeout: Seconds after which a batch that is missing is an error; None for no limit.
        shutdown_timeout: Seconds after which `shutdown` kills the workers.
        settings: Further arguments of `Collector`, for every worker.

    Raises:
        ArgumentError: If an argument is out of range.
        WorkerError: If a worker cannot be started.

    Example:
        >>> from rl.testing import CountingEnv
        >>> with MultiSyncCollector([CountingEnv] * 2, frames_per_batch=8, total_frames=16) as collector:
        ...     for batch in collector:
        ...         print(batch.batch_size, batch["observation"].flatten().tolist())
        torch.Size([2, 4]) [0.0, 1.0, 2.0, 0.0, 0.0, 1.0, 2.0, 0.0]
        torch.Size([2, 4]) [1.0, 2.0, 0.0, 1.0, 1.0, 2.0, 0.0, 1.0]
    """

    def __init__(
        self,
        create_env_fn: Any = None,
        policy: Any = None,
        *,
        frames_per_batch: int,
        cat_results: str | int | None = None,
        preemptive_threshold: float | None = None,
        **settings: Any,
    ) -> None:
        if preemptive_threshold is not None:
            as_number(preemptive_threshold, "MultiSyncCollector", "preemptive_threshold", above=0, most=1)
        self._cat = join_of(cat_results, settings, "MultiSyncCollector")
        self._threshold = preemptive_threshold or 0.0
        self._interruptor = None if preemptive_threshold is None else Interruptor()
        settings["interrupted_by"] = self._interruptor
        super().__init__(create_env_fn, policy, frames_per_batch=frames_per_batch, **settings)
        self._begin_count()

    def _begin_count(self) -> None:
        self._turn = 0
        self._due = {*range(len(self._workers))}  # workers without the command to collect their part
        self._stop_workers(now=False)

    def _share(self, frames: int, workers: int) -> int:
        return ceil(frames / workers)

    def _frames_of(self, sizes: Sequence[int]) -> int:
        return sum(sizes)

    def _next(self) -> TensorDictBase:
        batch, steps = self._next_batch()
        if steps is not None:  # those that the workers took, one after the other
            flat: Any = torch.cat([part.reshape(-1) for part in _shorten(batch, steps)])
            flat.names = ["time"]
            return flat
        if isinstance(self._cat, str):
            return batch
        joined: Any = torch.cat(list(batch.unbind(0)), dim=self._cat)
        return joined

    def _next_parts(self) -> list[tuple[int, TensorDictBase]]:
        batch, steps = self._next_batch()
        return [*enumerate(batch.unbind(0) if steps is None else _shorten(batch, steps))]

    def _next_batch(self) -> tuple[TensorDict, list[int] | None]:
        """Return the next batches of all workers ``[workers, *B, T]``, and their steps if they end early."""
        if self._layout is None:
            self._begin()
        else:
            self._collect()
        entries = dict(self._slots[self._turn % SLOTS])
        self._turn += 1
        steps = entries.pop(STEPS, None)
        shared = steps is not None and self._whole is None  # `_next` copies the valid steps
        batch = self._tensordict(entries if shared else self._own(entries), (len(self._workers), *self._size))
        return batch, None if steps is None else steps.tolist()

    def _collect(self) -> None:
        """Let every worker collect its part. After an error the parts that are complete wait for the others."""
        count, waiting = len(self._workers), True
        while waiting:
            try:
                for index in sorted(self._due):
                    self._workers.send(index, COLLECT)
                    self._due.discard(index)
                while count - len(self._workers.busy) < self._threshold * count:
                    if not self._workers.wait_any(timeout=self._timeout):
                        break  # `wait` raises
                self._stop_workers(now=True)
                self._workers.wait()
                waiting = False
            except WorkerError as error:
                self._stop_workers(now=False)
                if error.worker is not None:
                    self._due.add(error.worker)
                self._renew(error, self._turn % SLOTS)
        self._stop_workers(now=False)
        self._due = {*range(count)}

    def _stop_workers(self, *, now: bool) -> None:
        if self._interruptor is not None:
            (self._interruptor.stop_collection if now else self._interruptor.start_collection)()

    def shutdown(self, timeout: float | None = None, *, close_env: bool = True, raise_on_error: bool = True) -> None:
        """End the workers, which close their environments. May be called twice; for its arguments see the base."""
        super().shutdown(timeout, close_env=close_env, raise_on_error=raise_on_error)
        if self._interruptor is not None:
            self._interruptor.close()

    def _idle(self, *, keep: bool = False) -> None:  # noqa: ARG002  # there are no batches
        """Workers collect in `_next` only."""
        with suppress(WorkerError):  # in `lost`, if a worker has ended
            self._workers.wait_any(timeout=0.0)
        for index, error in self._workers.lost.items():
            self._due.add(index)
            self._renew(error, self._turn % SLOTS)


def _shorten(batch: TensorDict, steps: list[int]) -> list[Any]:
    """Return the first steps of each worker."""
    return [part[..., :count] for part, count in zip(batch.unbind(0), steps, strict=True)]


class MultiCollector:
    """`MultiSyncCollector` if `sync` is true, else `MultiAsyncCollector`; with the arguments of those.

    Args:
        create_env_fn: Functions that create the environments, one for each worker process.
        policy: A TensorDict module or function, of which every worker has a copy; random actions if None.
        sync: Whether a batch consists of parts of all workers, or is that of one.
        settings: Further arguments of the collector.

    Example:
        >>> from rl.testing import CountingEnv
        >>> collector = MultiCollector([CountingEnv] * 2, sync=True, frames_per_batch=8, num_workers_per_collector=1)
        >>> collector
        MultiSyncCollector(num_workers=2, frames_per_batch=8, frames=0/-1)
        >>> collector.shutdown()
    """

    def __new__(  # pyright: ignore[reportInconsistentConstructor]
        cls, create_env_fn: Any = None, policy: Any = None, *, sync: bool, **settings: Any
    ) -> MultiSyncCollector | MultiAsyncCollector:
        kind = MultiSyncCollector if sync else MultiAsyncCollector
        return kind(create_env_fn, policy, **settings)
