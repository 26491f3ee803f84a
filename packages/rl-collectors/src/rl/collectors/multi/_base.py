"""Base of collectors with worker processes."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import ceil
from typing import Any, Self

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl.collectors import _foreign
from rl.collectors._collector import Collector, count_of
from rl.collectors._profiling import ProfileConfig
from rl.collectors._trajectories import extend_buffer as write_rows
from rl.collectors._trajectories import split_trajectories
from rl.collectors.multi._worker import SLOTS, CollectorWorker
from rl.collectors.weights._load import matching_weights
from rl.collectors.weights._shared import SharedWeights
from rl.core.arguments import check_arguments
from rl.core.errors import CheckpointError, RLError, SpecError, WorkerError
from rl.core.keys import NestedKey, key_str
from rl.core.workers import SharedLeaves, WorkerGroup

__all__ = ["MultiBase", "check_settings", "makers_of", "policies_of"]


@_foreign.multi
class MultiBase(ABC):
    """Base of collectors with worker processes: workers, weights, and what is done with a batch."""

    def __init__(  # noqa: PLR0913  # TorchRL's arguments
        self,
        create_env_fn: Sequence[Callable[..., Any]] | Callable[..., Any] | None = None,
        policy: Any = None,
        *,
        frames_per_batch: int,
        total_frames: int = -1,
        env_fns: Sequence[Callable[..., Any]] | None = None,
        num_workers: int | None = None,
        create_env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        policy_factory: Callable[[], Any] | Sequence[Callable[[], Any]] | None = None,
        num_workers_per_collector: int = 1,
        init_random_frames: int = 0,
        postproc: Callable[[TensorDictBase], Any] | None = None,
        split_trajs: bool = False,
        update_at_each_batch: bool = False,
        weight_updater: Any = None,
        replay_buffer: Any = None,
        extend_buffer: bool = True,
        restart: bool = False,
        mp_start_method: str | None = None,
        num_threads: int = 1,
        daemon: bool = True,
        timeout: float | None = None,
        shutdown_timeout: float = 10.0,
        interrupted_by: Any = None,
        **settings: Any,
    ) -> None:
        owner = type(self).__name__
        check_settings(settings, owner)
        makers = makers_of(create_env_fn, env_fns, num_workers, create_env_kwargs, owner)
        if num_workers_per_collector != 1:
            raise SpecError(
                f"{owner}: num_workers_per_collector is {num_workers_per_collector}; a worker has one environment. Let"
                " the functions return SerialEnv(n, make) for n in each"
            )
        if policy is not None and policy_factory is not None:
            raise SpecError(f"{owner} takes a policy or a policy_factory, got both")
        self.policy, self._factory = policy, policy_factory
        self.total_frames = (
            -1 if total_frames == -1 else count_of("total_frames", total_frames, 1, "or -1 for no end, ")
        )
        self._frames, self._closed = 0, False
        self._postproc, self._split, self._buffer = postproc, split_trajs, replay_buffer
        self._by_batch, self._timeout = extend_buffer, timeout
        self._update_each, self._restart = update_at_each_batch, restart
        if split_trajs and not extend_buffer:
            raise SpecError(f"{owner}: split_trajs=True and extend_buffer=False would store padding as steps")
        settings["interruptor"] = interrupted_by
        frames = count_of("frames_per_batch", frames_per_batch, 1)
        settings["frames_per_batch"] = self._share(frames, len(makers))
        settings["init_random_frames"] = ceil(count_of("init_random_frames", init_random_frames, 0) / len(makers))
        self._batches, self._weights = SharedLeaves(), SharedWeights(len(makers))
        policies = policies_of(policy, policy_factory, len(makers), owner)
        common = (policy_factory is not None, settings, self._batches, self._weights, len(makers))
        self._workers = WorkerGroup(
            [partial(CollectorWorker, make, policies[i], *common, i) for i, make in enumerate(makers)],
            owner=owner,
            start_method=mp_start_method,
            daemon=daemon,
            num_threads=num_threads,
            timeout=timeout,
            shutdown_timeout=shutdown_timeout,
        )
        try:
            self._set_up()
        except BaseException:
            self.shutdown()
            raise
        if weight_updater is not None:
            weight_updater.register_collector(self)

    def _set_up(self) -> None:
        self._layout: dict[NestedKey, Any] | None = None
        self._slots: list[dict[NestedKey, Tensor]] = []
        self._lives = [0] * len(self._workers)
        states = self._workers.call_all("state_of_policy")
        self._names: dict[str, Tensor] = states[0]
        for index, state in enumerate(states):
            matching_weights(self._names, state, f"worker {index}, whose policy has others than worker 0")
        if self._names:
            self._weights.map(self._names)
            self._workers.call_all("map_weights", self._names)
        sizes = self._workers.call_all("attribute", "frames_per_batch")
        self.frames_per_batch = self._frames_of(sizes)
        if self.total_frames > 0 and self.total_frames % self.frames_per_batch:
            whole = ceil(self.total_frames / self.frames_per_batch) * self.frames_per_batch
            warnings.warn(
                f"total_frames={self.total_frames} is no multiple of the {self.frames_per_batch} frames of a batch:"
                f" {whole} frames will be collected",
                stacklevel=4,
            )

    # ---- written by the subclass

    @abstractmethod
    def _share(self, frames: int, workers: int) -> int:
        """Frames of one worker for a batch of `frames`."""

    @abstractmethod
    def _frames_of(self, sizes: Sequence[int]) -> int:
        """Frames of a batch, of those of the workers."""

    @abstractmethod
    def _next(self) -> TensorDictBase:
        """The next batch, in memory of its own unless it goes to a replay buffer."""

    @abstractmethod
    def _release(self) -> None:
        """Called when the memory of the last batch may be written again."""

    @abstractmethod
    def _idle(self, *, keep: bool = False) -> None:
        """Wait until no worker collects; batches that were not returned are dropped unless `keep`."""

    # ---- collecting

    def __iter__(self) -> Iterator[Any]:
        while self.total_frames < 0 or self._frames < self.total_frames:
            yield self.collect()

    def collect(self) -> Any:
        """Collect the next batch, whether or not `total_frames` is reached; None if it goes to a replay buffer.

        Raises:
            WorkerError: if a worker fails, has ended, or takes longer than `timeout`.
            RLError: after `shutdown`.
        """
        if self._closed:
            raise RLError("this collector was shut down and its environments closed: make a new one")
        if self._update_each:
            self.update_policy_weights_()
        batch: Any = self._next()
        self._frames += batch.numel()
        if self._split:
            batch = split_trajectories(batch)
        if self._postproc is not None:
            batch = self._postproc(batch)
        if self._buffer is not None:
            write_rows(self._buffer, batch, by_batch=self._by_batch)
            batch = None
        self._release()
        return batch

    def rollout(self) -> Any:
        """The same as `collect`."""
        return self.collect()

    def start(self) -> None:
        """Not available: the workers collect in the background themselves.

        Raises:
            SpecError: always.
        """
        raise SpecError(
            f"{type(self).__name__} has no start(): iterate over it; its workers collect in other processes. A"
            " Collector has a background thread"
        )

    def _begin(self) -> None:
        """Let every worker collect its first batch, and map the memory that fits it."""
        found: list[dict[str, Any]] = []
        while not found:
            try:
                found = self._workers.call_all("first")
            except WorkerError as error:
                self._renew(error)
        for index, other in enumerate(found[1:], start=1):
            if other != found[0]:
                raise SpecError(
                    f"{type(self).__name__}: the batches of workers 0 and {index} differ, which they may not:"
                    f" {differences(found[0], other)}. Make environments with equal specs"
                )
        front = (SLOTS, len(self._workers))
        self._layout = {key: ((*front, *shape), dtype) for key, (shape, dtype) in found[0]["layout"].items()}
        self._size: torch.Size = found[0]["batch_size"]
        mapped = self._batches.map(self._layout)
        self._slots = [{key: leaf[slot] for key, leaf in mapped.items()} for slot in range(SLOTS)]
        self._workers.call_all("map", self._layout, 0, 0)

    def _renew(self, error: WorkerError, slot: int = 0) -> None:
        """Replace a worker that has ended, if that was asked for; its first batch goes into a slot."""
        index = error.worker
        if not (self._restart and error.ended) or index is None:
            raise error
        warnings.warn(f"{error.args[0]}. It was replaced, its running episodes are lost", stacklevel=4)
        self._workers.restart(index)
        self._lives[index] += 1
        if self._names:
            self._workers.call(index, "map_weights", self._names)
        if self._layout is not None:
            self._workers.call(index, "map", self._layout, slot, self._lives[index])

    def _tensordict(self, entries: Mapping[NestedKey, Tensor], size: Sequence[int]) -> TensorDict:
        names: Any = [*[None] * (len(size) - 1), "time"]
        leaves: Any = entries
        return TensorDict(leaves, batch_size=torch.Size(size), names=names)

    def _own(self, entries: Mapping[NestedKey, Tensor]) -> dict[NestedKey, Tensor]:
        """Memory of the batch's own, unless a replay buffer copies it."""
        if self._buffer is not None and not self._split:
            return dict(entries)
        return {key: leaf.clone() for key, leaf in entries.items()}

    # ---- weights

    def update_policy_weights_(self, policy_or_weights: Any = None) -> None:
        """Give all workers new weights, which they use from their next batch on.

        Args:
            policy_or_weights: a policy of the same structure, its ``state_dict()``, or its parameters as a TensorDict.
                None for the policy that the collector was given.

        Raises:
            SpecError: if there is no policy with parameters, or the weights do not fit it. Nothing is changed.
        """
        source = self.policy if policy_or_weights is None else policy_or_weights
        if not self._names or source is None:
            raise SpecError(
                f"{type(self).__name__}.update_policy_weights_ has no weights to send: give the collector a policy with"
                " parameters, or pass the weights"
            )
        self._weights.publish(matching_weights(self._names, source, "the policy of the workers"))

    @property
    def policy_version(self) -> int:
        """Number of weight updates; ``policy_version`` in a batch says with which it was collected."""
        return self._weights.version if self._names else 0

    # ---- control

    def enable_profile(self, *, config: ProfileConfig | None = None, **settings: Any) -> None:
        """Record the next batches of some workers with `torch.profiler`, one Chrome trace for each.

        Args:
            config: what is recorded; `ProfileConfig.workers` are the workers.
            settings: those of `ProfileConfig`, in the place of `config`.

        Raises:
            SpecError: if a setting is out of range, both are given, or there is no such worker.
        """
        if config is not None and settings:
            raise SpecError(f"enable_profile takes a config or settings, got both: {', '.join(settings)}")
        wanted = ProfileConfig(**settings) if config is None else config
        workers = [*range(self.num_workers)] if wanted.workers is None else list(wanted.workers)
        if not set(workers) <= set(range(self.num_workers)):
            raise SpecError(f"enable_profile got workers {workers}; there are 0 to {self.num_workers - 1}")
        self._idle(keep=True)
        for index in workers:
            self._workers.call(index, "enable_profile", wanted)

    def explain(self) -> str:
        """Describe stages, keys, shapes, devices and casts of worker 0; all workers are alike."""
        self._idle(keep=True)
        return self._workers.call(0, "call", "explain")

    def reset(self) -> None:
        """Begin the next batch with a reset of all environments, and with new trajectory ids."""
        self._idle()
        self._workers.call_all("call", "reset")

    def set_seed(self, seed: int) -> int:
        """Seed the environments, each with the seed that the one before it returned, and begin new episodes.

        Returns:
            The seed for the next environment.
        """
        self._idle()
        for index in range(len(self._workers)):
            seed = self._workers.call(index, "call", "set_seed", seed)
        return seed

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the workers' collectors and the number of frames, without batches not yet returned."""
        self._idle(keep=True)
        return {"frames": self._frames, "workers": self._workers.call_all("call", "state_dict")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`.

        Raises:
            CheckpointError: if the number of workers differs.
        """
        parts = state.get("workers", [])
        if len(parts) != len(self._workers):
            raise CheckpointError(f"{type(self).__name__} has {len(self._workers)} workers, the state {len(parts)}")
        self._idle()
        for index, part in enumerate(parts):
            self._workers.call(index, "call", "load_state_dict", part)
        self._frames = state["frames"]

    @property
    def collected_frames(self) -> int:
        """Number of collected frames, over all batches."""
        return self._frames

    @property
    def num_workers(self) -> int:
        """Number of worker processes."""
        return len(self._lives)

    @property
    def stats(self) -> list[dict[str, float]]:
        """The `Collector.stats` of each worker."""
        self._idle(keep=True)
        return self._workers.call_all("attribute", "stats")

    def shutdown(self) -> None:
        """End the workers, which close their environments. May be called twice."""
        self._closed = True
        self._workers.close()
        self._batches.close()
        self._weights.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def __len__(self) -> int:
        """Number of batches of an iteration from the beginning."""
        if self.total_frames < 0:
            raise TypeError(f"a {type(self).__name__} without total_frames has no length")
        return ceil(self.total_frames / self.frames_per_batch)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(num_workers={self.num_workers}, frames_per_batch={self.frames_per_batch},"
            f" frames={self._frames}/{self.total_frames})"
        )


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """What differs in the results of two `CollectorWorker.first`."""
    parts = [f"batch size {tuple(one['batch_size'])} and {tuple(other['batch_size'])}"]
    parts = parts if one["batch_size"] != other["batch_size"] else []
    mine, theirs = one["layout"], other["layout"]
    for key in [*mine, *(key for key in theirs if key not in mine)]:
        if mine.get(key) != theirs.get(key):
            shown = [f"{dtype} {list(shape)}" for shape, dtype in (at[key] for at in (mine, theirs) if key in at)]
            missing = [] if len(shown) > 1 else ["nothing"]
            parts.append(f"{key_str(key)}: {' and '.join(shown + missing if key in mine else missing + shown)}")
    return "; ".join(parts[:4]) + ("; ..." if len(parts) > 4 else "")


def check_settings(settings: Mapping[str, Any], owner: str) -> None:
    """Refuse settings that `Collector` does not have, or that mean nothing for batches of workers."""
    check_arguments(Collector, settings, owner)
    refused = {
        "interruptor": "MultiSyncCollector(preemptive_threshold=...) has one of its own",
        "return_same_td": "a batch is a copy of shared memory",
        "trajs_per_batch": "batches of workers have one shape; pass split_trajs=True, or use a Collector",
        "traj_format": "batches of workers have one shape; pass split_trajs=True, or use a Collector",
    }
    for name, why in refused.items():
        if settings.get(name) not in (None, False):
            raise SpecError(f"{owner} has no {name}: {why}")


def makers_of(create_env_fn: Any, env_fns: Any, num_workers: int | None, kwargs: Any, owner: str) -> list[Any]:
    """A function without arguments for each worker."""
    given = create_env_fn if env_fns is None else env_fns
    if given is None or (create_env_fn is not None and env_fns is not None):
        raise SpecError(f"{owner} takes a list of functions that make environments, as create_env_fn or as env_fns")
    if callable(given):
        if num_workers is None:
            raise SpecError(f"{owner} got one function: say num_workers=, or pass a list")
        given = [given] * num_workers
    makers = list(given)
    if not makers or not all(callable(make) for make in makers) or num_workers not in (None, len(makers)):
        raise SpecError(
            f"{owner} takes functions that make environments, one for each worker"
            f" ({'any number' if num_workers is None else num_workers}), got {makers!r:.200}"
        )
    if kwargs is None:
        return makers
    several = [kwargs] * len(makers) if isinstance(kwargs, Mapping) else list(kwargs)
    if len(several) != len(makers):
        raise SpecError(f"{owner} has {len(makers)} workers, and create_env_kwargs {len(several)} entries")
    return [partial(make, **one) for make, one in zip(makers, several, strict=True)]


def policies_of(policy: Any, factory: Any, count: int, owner: str) -> list[Any]:
    """The policy or the function that makes it, for each worker."""
    if factory is None:
        return [policy] * count
    several = [factory] * count if callable(factory) else list(factory)
    if len(several) != count:
        raise SpecError(f"{owner} has {count} workers, and policy_factory has {len(several)} entries")
    return several
