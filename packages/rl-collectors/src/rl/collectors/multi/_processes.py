"""Base of collectors with worker processes, whose batches and weights are in shared memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from rl.collectors._assemble import check_keys
from rl.collectors._collector import VERSION, Collector
from rl.collectors._profiling import ProfileConfig
from rl.collectors.multi._base import WorkersBase
from rl.collectors.weights import SharedWeights, load_weights
from rl.core.arguments import foreign_arguments
from rl.core.errors import ArgumentError, SpecError, WorkerError
from rl.core.keys import TRAJ_IDS, NestedKey, key_str, leaf_keys, unwrap
from rl.core.workers import SharedLeaves, WorkerGroup, layout_of, write_leaves

COLLECT = 0
"""Number of the command."""
SLOTS = 2
"""Batches of a worker in shared memory: one that is being written, one that is being read."""

STEPS = "_steps"
"""Key of the number of valid steps of a slot, where batches may end early."""

#: ids of trajectories begin at a multiple of it after a worker was replaced
_LIFE = 1 << 40


class WorkerBase:
    """A collector in a worker: a process, or an actor of Ray.

    Args:
        collector_class: Class of the collector.
        create_env_fn: Function that creates the environment.
        policy: The policy; a function that creates it if `factory`.
        factory: See `policy`.
        settings: Further arguments of the collector.
        index: Number of this worker.
        workers: Number of all workers.
        life: Number of times that this worker was replaced.
    """

    def __init__(
        self,
        collector_class: Any,
        create_env_fn: Any,
        policy: Any,
        factory: bool,  # noqa: FBT001  # internal
        settings: Mapping[str, Any],
        index: int,
        workers: int,
        life: int = 0,
    ) -> None:
        self._policy = policy() if factory else policy
        self._collector = collector_class(create_env_fn, self._policy, **settings)
        self._index, self._workers, self._life = index, workers, life
        self._version = 0

    def _stamped(self) -> TensorDictBase:
        """Return the next batch, with trajectory ids that no other worker has, and the version of the weights."""
        batch = self._collector.collect()
        ids = batch.get(TRAJ_IDS, None)
        if ids is not None:
            ids.mul_(self._workers).add_(self._index + self._life * _LIFE)
        return batch.set(VERSION, torch.full(batch.batch_size, self._version, device=batch.device))

    def state_of_policy(self) -> dict[str, Tensor]:
        """Names, shapes and dtypes of the weights, as meta tensors; empty for a policy without weights."""
        state = self._policy.state_dict() if isinstance(self._policy, nn.Module) else {}
        return {name: torch.empty_like(value, device="meta") for name, value in state.items()}

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the collector."""
        return getattr(self._collector, name)(*args, **kwargs)

    def apply(self, path: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a method of the collector, of its policy or environment."""
        return attrgetter(path)(self._collector)(*args, **kwargs)

    def attribute(self, name: str) -> Any:
        """Return an attribute of the collector."""
        return getattr(self._collector, name)

    def find(self, path: str) -> tuple[Any] | str:
        """Return an attribute of collector, policy or environment in a tuple; the message if there is none."""
        try:
            return (attrgetter(path)(self._collector),)
        except AttributeError as error:
            return str(error)


class CollectorWorker(WorkerBase):
    """A collector in a worker process, whose batches go to shared memory.

    Args:
        batches: Memory of the batches.
        weights: Memory of the weights.
        settings: Further arguments of `Collector`.
        parts: Further arguments of `WorkerBase`.
    """

    def __init__(
        self, batches: SharedLeaves, weights: SharedWeights, settings: Mapping[str, Any], **parts: Any
    ) -> None:
        super().__init__(Collector, settings=settings, **parts)
        self._shortens = settings.get("interruptor") is not None
        self._batches, self._weights = batches, weights
        self._targets: dict[str, Tensor] | None = None
        self._known = 0  # version that was read from the shared memory
        self._slots: list[dict[NestedKey, Tensor]] = []
        self._taken = 0
        self._held: TensorDictBase | None = None
        self.commands = (self.collect,)

    def collect(self) -> None:
        """Collect a batch into the next slot."""
        self._write(self._batch())

    def first(self, again: bool) -> dict[NestedKey, Any]:  # noqa: FBT001  # a message
        """Collect the first batch, and return its layout; `map` writes it. May be called twice.

        Args:
            again: Whether to begin with a reset and to drop the batch of an earlier call.
        """
        if again:
            self._held = None
            self._collector.reset()
        if self._held is None:
            self._held = self._batch()
        entries = {key: self._held.get(key) for key in leaf_keys(self._held)}
        if self._shortens:
            entries[STEPS] = torch.tensor(0)
        return {
            "layout": layout_of(entries, "MultiCollector"),
            "batch_size": self._held.batch_size,
            "groups": _groups_of(self._held),
        }

    def map(self, layout: Mapping[NestedKey, Any], slot: int, life: int) -> None:
        """Map the memory of the batches, and write the one of `first`.

        Args:
            layout: Layout with the dimensions of slots and workers in front.
            slot: Slot of the next batch.
            life: Number of times that this worker was replaced.
        """
        mapped = self._batches.map(layout)
        self._slots = [{key: leaf[slot, self._index] for key, leaf in mapped.items()} for slot in range(SLOTS)]
        self._taken, self._life = slot, life
        if self._held is not None:
            self._write(self._held)
            self._held = None

    def _batch(self) -> TensorDictBase:
        if self._targets is not None:
            found = self._weights.acquire(self._targets, self._index, self._known)
            if found != self._known:
                self._known = self._version = found
        return self._stamped()

    def _write(self, batch: TensorDictBase) -> None:
        time, steps = batch.ndim - 1, batch.shape[-1]
        places = self._slots[self._taken % SLOTS].copy()
        count = places.pop(STEPS) if self._shortens else None
        owner = type(self._collector).__name__
        check_keys(places, leaf_keys(batch), owner)
        if count is not None:
            count.fill_(steps)
            places = {key: place.narrow(time, 0, steps) for key, place in places.items()}
        write_leaves(places, batch, owner)
        self._taken += 1

    # ---- messages

    def map_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Map the memory of the weights."""
        self._weights.map(weights)
        self._targets = self._policy.state_dict()

    def load_weights(self, weights: Mapping[str, Any], version: int) -> None:
        """Use weights that are those of this worker alone, until the next ones in the shared memory."""
        load_weights(self._policy, weights)
        self._known, self._version = self._weights.version, version

    def enable_profile(self, config: ProfileConfig) -> None:
        """Record the next batches."""
        self._collector.enable_profile(config=config, worker_idx=self._index)

    def close(self) -> None:
        """Close the environment."""
        self._collector.shutdown()


def _groups_of(batch: TensorDictBase) -> dict[NestedKey, torch.Size]:
    """Batch sizes of the parts that have more dimensions than the batch."""
    parts: Any = batch.items(include_nested=True)
    return {
        unwrap(key): part.batch_size
        for key, part in parts
        if isinstance(part, TensorDictBase) and part.ndim > batch.ndim
    }


@foreign_arguments()
class MultiBase(WorkersBase):
    """Base of collectors with worker processes: their start, their memory, and their replacement."""

    def __init__(
        self,
        create_env_fn: Sequence[Callable[..., Any]] | Callable[..., Any] | None = None,
        policy: Any = None,
        *,
        num_workers_per_collector: int = 1,
        mp_start_method: str | None = None,
        num_threads: int = 1,
        daemon: bool = True,
        timeout: float | None = None,
        shutdown_timeout: float = 10.0,
        interrupted_by: Any = None,
        **settings: Any,
    ) -> None:
        owner = type(self).__name__
        if num_workers_per_collector != 1:
            raise ArgumentError(
                f"{owner}: num_workers_per_collector is {num_workers_per_collector}; a worker has one environment. Let"
                " the functions return SerialEnv(n, make) for n in each"
            )
        self._interrupted_by = interrupted_by
        self._profiled: list[int] = []  # workers that record
        self._group = partial(
            WorkerGroup,
            owner=owner,
            start_method=mp_start_method,
            daemon=daemon,
            num_threads=num_threads,
            timeout=timeout,
            shutdown_timeout=shutdown_timeout,
        )
        super().__init__(create_env_fn, policy, timeout=timeout, **settings)

    def _launch(self, makers: list[Any], policies: list[Any], settings: dict[str, Any], shares: dict[str, int]) -> None:
        settings = {**settings, **shares, "interruptor": self._interrupted_by}
        self._batches, self._weights = SharedLeaves(), SharedWeights(len(makers))
        self._layout: dict[NestedKey, Any] | None = None
        self._slots: list[dict[NestedKey, Tensor]] = []
        self._again = False  # whether the first batches of the workers begin with a reset
        common = {"settings": settings, "factory": self._makes_policy, "workers": len(makers)}
        worker = partial(CollectorWorker, self._batches, self._weights, **common)
        self._workers = self._group(
            [
                partial(worker, create_env_fn=make, policy=policies[index], index=index)
                for index, make in enumerate(makers)
            ]
        )

    def _connect(self) -> None:
        super()._connect()
        if self._names:
            self._weights.map(self._names)
            self._call_all("map_weights", self._names)

    def _begin(self) -> None:
        """Let every worker collect its first batch, and map the memory that fits it."""
        found: list[dict[str, Any]] = []
        while not found:
            try:
                found = self._call_all("first", self._again)
            except WorkerError as error:
                self._renew(error)
        for index, other in enumerate(found[1:], start=1):
            if other != found[0]:
                raise SpecError(
                    f"{type(self).__name__}: the batches of workers 0 and {index} differ, which they may not:"
                    f" {_differences(found[0], other)}. Create environments with equal specs"
                )
        front = (SLOTS, len(self._workers))
        self._layout = {key: ((*front, *shape), dtype) for key, (shape, dtype) in found[0]["layout"].items()}
        self._size: torch.Size = found[0]["batch_size"]
        self._groups: dict[NestedKey, torch.Size] = found[0]["groups"]
        mapped = self._batches.map(self._layout)
        self._slots = [{key: leaf[slot] for key, leaf in mapped.items()} for slot in range(SLOTS)]
        self._workers.call_each("map", [(self._layout, 0, life) for life in self._lives])
        self._again = False

    def _recover(self) -> None:
        self._workers.settle()
        self._layout, self._again = None, True
        self._begin_count()
        self._interrupted = False

    @abstractmethod
    def _begin_count(self) -> None:
        """Set the counts of batches, of which there are none."""

    def _renew(self, error: WorkerError, slot: int = 0) -> None:
        """Replace a worker that has ended, with `restart`; its first batch goes into `slot`."""
        index = self._count_replacement(error)
        self._workers.restart(index)
        if self._names:
            self._call(index, "map_weights", self._names)
        if index in self._own_weights:
            self._send_own(index)
        self._assign_again(index)
        if index in self._profiled:
            self._call(index, "enable_profile", self.profile_config)
        if self._layout is not None:
            self._call(index, "map", self._layout, slot, self._lives[index])

    def _tensordict(self, entries: Mapping[NestedKey, Tensor], size: Sequence[int]) -> TensorDict:
        names: Any = [*[None] * (len(size) - 1), "time"]
        leaves: Any = entries
        batch = TensorDict(leaves, batch_size=torch.Size(size), names=names)
        workers = torch.Size(size[: len(size) - len(self._size)])
        for key, group in self._groups.items():
            part: Any = batch.get(key)
            part.batch_size = workers + group
            part.names = [*names, *[None] * (part.ndim - len(names))]
        return batch

    def _own(self, entries: Mapping[NestedKey, Tensor]) -> dict[NestedKey, Tensor]:
        """Return copies of the entries, or the entries themselves if a replay buffer copies them."""
        if self._output.replay_buffer is not None and not self._output.split_trajs and self._whole is None:
            return dict(entries)
        return {key: leaf.clone() for key, leaf in entries.items()}

    def _call(self, index: int, method: str, *args: Any) -> Any:
        return self._workers.call(index, method, *args)

    def _call_all(self, method: str, *args: Any) -> list[Any]:
        return self._workers.call_all(method, *args)

    def _publish(self, weights: dict[str, Any]) -> None:
        self._weights.publish(weights, self._version)

    def _publish_each(self, weights: Mapping[int, tuple[dict[str, Any], int]]) -> None:
        self._pause(keep=True)
        for index in weights:
            self._send_own(index)

    def _send_own(self, index: int) -> None:
        values, version = self._own_weights[index]
        sent = {name: value.cpu() for name, value in values.items()}  # a forked process has no CUDA
        self._call(index, "load_weights", sent, version)

    def enable_profile(self, *, config: ProfileConfig | None = None, **settings: Any) -> None:
        """Record the next batches of some workers with `torch.profiler`, one Chrome trace for each.

        Args:
            config: Settings of the recording; `ProfileConfig.workers` are the workers.
            settings: Settings of `ProfileConfig`, in place of `config`.

        Raises:
            ArgumentError: If a setting is out of range, both are given, or there is no such worker.
        """
        wanted = ProfileConfig.of(config, settings)
        workers = [*range(self.num_workers)] if wanted.workers is None else list(wanted.workers)
        if not set(workers) <= set(range(self.num_workers)):
            raise ArgumentError(f"enable_profile got workers {workers}; there are 0 to {self.num_workers - 1}")
        self._pause(keep=True)
        for index in workers:
            self._call(index, "enable_profile", wanted)
        self.profile_config, self._profiled = wanted, workers

    def disable_profile(self) -> None:
        """End the recordings; each ends by itself after its last batch."""
        self._pause(keep=True)
        self._call_all("call", "disable_profile")
        self.profile_config, self._profiled = None, []

    def shutdown(self, timeout: float | None = None, *, close_env: bool = True, raise_on_error: bool = True) -> None:
        """End the workers, which close their environments. May be called twice.

        Args:
            timeout: Ignored: `shutdown_timeout` is the time after which workers are killed.
            close_env: Ignored: environments end with their workers.
            raise_on_error: Ignored: nothing is raised.
        """
        del timeout, close_env, raise_on_error
        self._closed = True
        self._workers.close()
        self._batches.close()
        self._weights.close()


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Describe the differences between the results of two `CollectorWorker.first`."""
    parts = [f"batch size {tuple(one['batch_size'])} and {tuple(other['batch_size'])}"]
    parts = parts if one["batch_size"] != other["batch_size"] else []
    mine, theirs = one["layout"], other["layout"]
    for key in [*mine, *(key for key in theirs if key not in mine)]:
        if mine.get(key) != theirs.get(key):
            shown = [f"{dtype} {list(shape)}" for shape, dtype in (at[key] for at in (mine, theirs) if key in at)]
            missing = [] if len(shown) > 1 else ["nothing"]
            parts.append(f"{key_str(key)}: {' and '.join(shown + missing if key in mine else missing + shown)}")
    return "; ".join(parts[:4]) + ("; ..." if len(parts) > 4 else "")
