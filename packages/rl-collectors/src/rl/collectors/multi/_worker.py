"""A collector in a worker process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl.collectors._assemble import check_keys
from rl.collectors._collector import VERSION, Collector
from rl.collectors._profiling import ProfileConfig
from rl.collectors.weights._load import load_weights
from rl.collectors.weights._shared import SharedWeights
from rl.core.keys import TRAJ_IDS, NestedKey, leaf_keys, unwrap
from rl.core.workers import SharedLeaves, layout_of, write_leaves

__all__ = ["COLLECT", "SLOTS", "STEPS", "CollectorWorker", "WorkerBase"]

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
        collector_class: makes the collector.
        create_env_fn: makes the environment.
        policy: the policy; a function that makes it if `factory`.
        factory: see `policy`.
        settings: further arguments of the collector.
        index: number of this worker.
        workers: number of all workers.
        life: how often this worker was replaced.
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
        """The next batch, with trajectory ids that no other worker has, and the version of the weights."""
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
        """An attribute of the collector."""
        return getattr(self._collector, name)

    def find(self, path: str) -> tuple[Any] | str:
        """An attribute of the collector, of its policy or environment, in a tuple; the message if there is none."""
        try:
            return (attrgetter(path)(self._collector),)
        except AttributeError as error:
            return str(error)


class CollectorWorker(WorkerBase):
    """A collector in a worker process, whose batches go to shared memory.

    Args:
        batches: memory of the batches.
        weights: memory of the weights.
        settings: further arguments of `Collector`.
        parts: further arguments of `WorkerBase`.
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
            again: begin with a reset, and drop the batch of an earlier call.
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
            layout: with the dimensions of slots and workers in front.
            slot: of the next batch.
            life: how often this worker was replaced.
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
