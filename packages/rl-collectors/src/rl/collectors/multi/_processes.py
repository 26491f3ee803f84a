"""Base of collectors with worker processes, whose batches and weights are in shared memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from rl.collectors import _foreign
from rl.collectors._profiling import ProfileConfig
from rl.collectors.multi._base import WorkersBase
from rl.collectors.multi._worker import SLOTS, CollectorWorker
from rl.collectors.weights._shared import SharedWeights
from rl.core.errors import SpecError, WorkerError
from rl.core.keys import NestedKey, key_str
from rl.core.workers import SharedLeaves, WorkerGroup

__all__ = ["MultiBase"]


@_foreign.multi
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
            raise SpecError(
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
                    f" {_differences(found[0], other)}. Make environments with equal specs"
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
        self._torn = False

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
        """Copies of the entries, or the entries themselves if a replay buffer copies them."""
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
            config: what is recorded; `ProfileConfig.workers` are the workers.
            settings: those of `ProfileConfig`, in the place of `config`.

        Raises:
            SpecError: if a setting is out of range, both are given, or there is no such worker.
        """
        wanted = ProfileConfig.of(config, settings)
        workers = [*range(self.num_workers)] if wanted.workers is None else list(wanted.workers)
        if not set(workers) <= set(range(self.num_workers)):
            raise SpecError(f"enable_profile got workers {workers}; there are 0 to {self.num_workers - 1}")
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
