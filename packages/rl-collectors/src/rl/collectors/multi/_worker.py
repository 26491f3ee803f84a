"""A collector in a worker process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl.collectors._collector import VERSION, Collector
from rl.collectors._profiling import ProfileConfig
from rl.collectors.weights._shared import SharedWeights
from rl.core.keys import TRAJ_IDS, NestedKey, leaf_keys
from rl.core.workers import SharedLeaves, layout_of

__all__ = ["COLLECT", "SLOTS", "STEPS", "CollectorWorker"]

COLLECT = 0
"""Number of the command."""
SLOTS = 2
"""Batches of a worker in shared memory: one that is being written, one that is being read."""

STEPS = "_steps"
"""Key of the number of valid steps of a slot, where batches may end early."""

#: ids of trajectories begin at a multiple of it after a worker was replaced
_LIFE = 1 << 40


class CollectorWorker:
    """A collector in a worker process, whose batches go to shared memory.

    Args:
        create_env_fn: makes the environment.
        policy: the policy; a function that makes it if `factory`.
        factory: see `policy`.
        settings: further arguments of `Collector`.
        batches: memory of the batches.
        weights: memory of the weights.
        workers: number of all workers.
        index: number of this one.
    """

    def __init__(
        self,
        create_env_fn: Callable[[], Any],
        policy: Any,
        factory: bool,  # noqa: FBT001  # internal
        settings: Mapping[str, Any],
        batches: SharedLeaves,
        weights: SharedWeights,
        workers: int,
        index: int,
    ) -> None:
        self._policy = policy() if factory else policy
        self._collector = Collector(create_env_fn, self._policy, **settings)
        self._index, self._workers, self._shortens = index, workers, settings.get("interruptor") is not None
        self._batches, self._weights = batches, weights
        self._targets: dict[str, Tensor] | None = None
        self._version = 0
        self._first_id = 0
        self._slots: list[dict[NestedKey, Tensor]] = []
        self._taken = 0
        self._held: TensorDictBase | None = None
        self.commands = (self.collect,)

    def collect(self) -> None:
        """Collect a batch into the next slot."""
        self._write(self._batch())

    def first(self) -> dict[NestedKey, Any]:
        """Collect the first batch, and return its layout; `map` writes it. May be called twice."""
        if self._held is None:
            self._held = self._batch()
        entries = {key: self._held.get(key) for key in leaf_keys(self._held)}
        if self._shortens:
            entries[STEPS] = torch.tensor(0)
        return {
            "layout": layout_of(entries, "MultiCollector"),
            "batch_size": self._held.batch_size,
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
        self._taken, self._first_id = slot, life * _LIFE
        if self._held is not None:
            self._write(self._held)
            self._held = None

    def _batch(self) -> TensorDictBase:
        if self._targets is not None:
            self._version = self._weights.acquire(self._targets, self._index, self._version)
        batch = self._collector.collect()
        ids = batch.get(TRAJ_IDS, None)
        if ids is not None:  # no two workers share one
            ids.mul_(self._workers).add_(self._index + self._first_id)
        return batch.set(VERSION, torch.full(batch.batch_size, self._version))

    def _write(self, batch: TensorDictBase) -> None:
        time, steps = batch.ndim - 1, batch.shape[-1]
        for key, place in self._slots[self._taken % SLOTS].items():
            if key == STEPS:
                place.fill_(steps)
            else:
                (place.narrow(time, 0, steps) if self._shortens else place).copy_(batch.get(key))
        self._taken += 1

    # ---- messages

    def state_of_policy(self) -> dict[str, Tensor]:
        """Names, shapes and dtypes of the weights; empty without."""
        state = self._policy.state_dict() if isinstance(self._policy, nn.Module) else {}
        return {name: torch.empty_like(value, device="meta") for name, value in state.items()}

    def map_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Map the memory of the weights."""
        self._weights.map(weights)
        self._targets = self._policy.state_dict()

    def enable_profile(self, config: ProfileConfig) -> None:
        """Record the next batches."""
        self._collector.enable_profile(config=config, worker_idx=self._index)

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the collector."""
        return getattr(self._collector, name)(*args, **kwargs)

    def attribute(self, name: str) -> Any:
        """An attribute of the collector."""
        return getattr(self._collector, name)

    def close(self) -> None:
        """Close the environment."""
        self._collector.shutdown()
