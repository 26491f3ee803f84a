"""Collectors on more than one machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from math import ceil
from time import monotonic
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import nn

from rl.collectors._collector import Collector
from rl.collectors.multi._base import WorkersBase, join_of
from rl.collectors.multi._collectors import MultiSyncCollector
from rl.collectors.multi._processes import WorkerBase
from rl.collectors.weights import load_weights
from rl.core.arguments import as_integer, foreign_arguments
from rl.core.errors import ArgumentError, SpecError, WorkerError, WorkerTimeoutError, issue_warning
from rl.core.workers import import_ray, packed, start_ray, unpacked

__all__ = ["RayCollector"]


class RayWorker(WorkerBase):
    """A collector in an actor.

    Args:
        seed: Seed of torch's generator.
        weights: Weights for the first batch, or None.
        version: Version of these weights.
        parts: Further arguments of `WorkerBase`.
    """

    def __init__(self, seed: int, weights: Mapping[str, Any] | None, version: int, **parts: Any) -> None:
        torch.manual_seed(seed)
        super().__init__(**parts)
        self._new = None if weights is None else (weights, version)

    def publish(self, weights: Mapping[str, Any], version: int) -> None:
        """Keep weights for the next batch; called in a thread of its own while a batch is collected."""
        if self._new is None or version > self._new[1]:
            self._new = weights, version

    def collect(self) -> Any:
        """Collect a batch with the newest weights."""
        if self._new is not None and self._new[1] > self._version:
            weights, self._version = self._new
            if isinstance(self._collector.policy, nn.Module):
                load_weights(self._collector.policy, unpacked(weights))
            self._collector.update_policy_weights_()
        return packed(self._stamped())


_AHEAD = 2  # batches that an actor may collect before the first of them is taken


@foreign_arguments()
class RayCollector(WorkersBase):
    """Collectors in actors of Ray (``pip install "rl-collectors[ray]"``), on one machine or many.

    With ``sync=True`` a batch has one part of each actor, collected at the same time; its data equals that of a
    `Collector` in each actor. Without it, a batch is that of the actor that is ready first, and each actor collects at
    most two batches ahead. Keys are those of `Collector`, and ``policy_version`` int64: the number of weight updates
    that the actor had when it began the batch. Weights are sent through Ray's object store, once to each machine.

    Args:
        create_env_fn: Functions that create the environments, one for each actor; or one function and `num_collectors`.
        policy: A TensorDict module or function, of which every actor has a copy, on the CPU unless `policy_device` says
            otherwise; random actions if None.
        frames_per_batch: Frames of a batch: of all actors with `sync`, else of one.
        sync: Whether a batch consists of parts of all actors, or is that of one.
        cat_results: Form of a batch with `sync`: ``"stack"`` for ``[actors, *B, T]``; a dimension along which the parts
            ``[*B, T]`` are concatenated, 0 or -1 (time). None for 0 if the batch extends a replay buffer, and
            ``"stack"`` otherwise.
        num_collectors: Number of actors if there is one function.
        num_workers_per_collector: Environments of an actor, each in a process of its own.
        collector_class: Class of the collector in the actors; `Collector`, or `MultiSyncCollector` for several
            environments.
        collector_kwargs: Further arguments of that class.
        ray_init_config: Arguments of ``ray.init``, such as ``{"address": "auto"}`` for a running cluster. Ray is
            started on this machine if it is not running.
        remote_configs: Resources of an actor, such as ``{"num_cpus": 1, "num_gpus": 0.2}``, or a list of them.
        shutdown_timeout: Seconds after which `shutdown` kills the actors.
        settings: Further settings: `total_frames`, `create_env_kwargs`, `policy_factory`, `init_random_frames`,
            `postproc`, `split_trajs`, `update_at_each_batch`, `weight_updater`, `trajs_per_batch`, `traj_format`,
            `replay_buffer`, `extend_buffer`, `restart` and `timeout`, as those of `MultiSyncCollector`; and further
            arguments of `Collector`, for every actor.

    Raises:
        MissingExtraError: If Ray is not installed.
        ArgumentError: If an argument is out of range, or the functions or the policy cannot be sent.
        WorkerError: If an actor cannot be started.

    Example:
        >>> from rl.testing import CountingEnv
        >>> with RayCollector([CountingEnv] * 2, frames_per_batch=4, total_frames=12) as collector:  # doctest: +SKIP
        ...     sum(batch.numel() for batch in collector)
        12
    """

    _kind = "actors"

    def __init__(  # noqa: PLR0913  # TorchRL's arguments
        self,
        create_env_fn: Any = None,
        policy: Any = None,
        *,
        frames_per_batch: int,
        sync: bool = False,
        cat_results: str | int | None = None,
        num_collectors: int | None = None,
        num_workers_per_collector: int = 1,
        collector_class: type | None = None,
        collector_kwargs: Mapping[str, Any] | None = None,
        ray_init_config: Mapping[str, Any] | None = None,
        remote_configs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        shutdown_timeout: float = 10.0,
        **settings: Any,
    ) -> None:
        if callable(create_env_fn) and num_collectors is None:
            raise ArgumentError("RayCollector got one function: pass num_collectors=, or a list of functions")
        self._cat = join_of(cat_results, settings, "RayCollector")
        self._rows = cat_results is None and self._cat == 0
        self.sync, self._ahead, self._patience = sync, not sync, shutdown_timeout
        self._requested_frames = frames_per_batch
        self._each = as_integer(num_workers_per_collector, "RayCollector", "num_workers_per_collector", 1)
        self._class = collector_class or (Collector if self._each == 1 else MultiSyncCollector)
        self._options = dict(collector_kwargs or {})
        self._ray_config, self._remote_configs = ray_init_config, remote_configs
        super().__init__(
            create_env_fn, policy, frames_per_batch=frames_per_batch, num_workers=num_collectors, **settings
        )

    def _share(self, frames: int, workers: int) -> int:
        return ceil(frames / workers) if self.sync else frames

    def _frames_of(self, sizes: Sequence[int]) -> int:
        return sum(sizes) if self.sync else sizes[0]

    def _launch(self, makers: list[Any], policies: list[Any], settings: dict[str, Any], shares: dict[str, int]) -> None:
        if self._whole is not None and self._options.get("cat_results") not in (None, "stack"):
            raise ArgumentError("RayCollector: trajs_per_batch needs cat_results='stack' in collector_kwargs")
        if self._rows and self._class is MultiSyncCollector:  # the rows of its workers, too
            settings = {**settings, "cat_results": 0}
        settings = {**settings, **self._options, **shares}
        if not self._makes_policy:
            device = settings.get("policy_device", settings.get("device")) or "cpu"
            policies = [_copy(self.policy, device)] * len(makers)
        self._parts = [
            {
                "collector_class": self._class,
                "create_env_fn": make if self._each == 1 else [make] * self._each,
                "policy": policy,
                "factory": self._makes_policy,
                "settings": settings,
                "index": index,
                "workers": len(makers),
            }
            for index, (make, policy) in enumerate(zip(makers, policies, strict=True))
        ]
        self._resources = _resources(self._remote_configs, len(makers))
        self._ray = import_ray("RayCollector", "rl-collectors[ray]")
        self._owns_ray = not self._ray.is_initialized()
        self._actors: list[Any] = []
        self._running: dict[Any, int] = {}  # batches that are being collected, and their actors
        self._layout = self._weights = None  # the weights are in the object store
        self._weights_version = 0

    def _connect(self) -> None:
        if self._owns_ray:
            start_ray(self._ray, self._ray_config, "RayCollector")
        self._actors = [self._make(index) for index in range(self.num_workers)]
        super()._connect()
        if self.frames_per_batch != self._requested_frames:
            issue_warning(
                f"RayCollector: frames_per_batch={self._requested_frames} is rounded up: each batch has"
                f" {self.frames_per_batch} frames"
            )

    # ---- actors

    def _make(self, index: int) -> Any:
        ray = self._ray
        try:
            ray.cloudpickle.dumps(self._parts[index])
        except Exception as error:  # whatever an object raises
            raise ArgumentError(
                f"RayCollector: the function of environment {index}, the policy or a setting cannot be sent to an actor"
                f" ({error}): pass policy_factory=, and functions that hold no open files or locks"
            ) from error
        remote = ray.remote(concurrency_groups={"weights": 1}, **self._resources[index])(_actor_class(ray))
        life = self._lives[index]
        seed = hash((torch.initial_seed(), index, self.num_workers, life)) & ((1 << 62) - 1)
        own = self._own_weights.get(index)
        weights = self._weights if own is None else ray.put(packed(own[0]))
        version = self._weights_version if own is None else own[1]
        return remote.remote(seed, weights, version, life=life, **self._parts[index])

    def _result(self, reference: Any, index: int) -> Any:
        """Return the result of an actor; its exceptions as a `WorkerError`."""
        ray = self._ray
        try:
            return ray.get(reference, timeout=self._timeout)
        except ray.exceptions.GetTimeoutError as error:
            raise WorkerTimeoutError(
                f"RayCollector: no answer of actor {index} within {self._timeout} s. Shut the collector down, and allow"
                " more time with timeout= if the simulator is only slow, or resources are not free"
            ) from error
        except ray.exceptions.RayActorError as error:
            cause = _cause(error)
            raise _failure(f"actor {index} has ended: {cause}", index, ended=True) from error
        except ray.exceptions.RayTaskError as error:
            raise _failure(f"actor {index} raised {error}", index, ended=False) from error

    def _replace(self, error: WorkerError) -> int:
        """Replace an actor that has ended, and return its index; raise `error` without `restart`."""
        index = self._count_replacement(error)
        with suppress(Exception):
            self._ray.kill(self._actors[index])
        self._running = {batch: actor for batch, actor in self._running.items() if actor != index}
        self._actors[index] = self._make(index)
        self._assign_again(index)
        return index

    # ---- collecting

    def _next(self) -> TensorDictBase:
        ordered: Any = [part for _, part in self._next_parts()]
        if not self.sync:
            return ordered[0]
        if isinstance(self._cat, str):
            stacked: Any = torch.stack(ordered)
            stacked.names = [*[None] * (stacked.ndim - 1), "time"]
            return stacked
        joined: Any = torch.cat(ordered, dim=self._cat)
        return joined

    def _next_parts(self) -> list[tuple[int, TensorDictBase]]:
        return self._all() if self.sync else [self._first()]

    def _all(self) -> list[tuple[int, TensorDictBase]]:
        """Return the batches of all actors, in their order."""
        for index in range(len(self._actors)):
            if index not in self._running.values():  # after an error some have a batch already
                self._request(index)
        parts: dict[int, TensorDictBase] = {}
        while len(parts) < len(self._actors):
            reference, index = next((ref, one) for ref, one in self._running.items() if one not in parts)
            try:
                parts[index] = self._received(reference, index)
            except WorkerError as error:
                self._request(self._replace(error))
        self._running = {}
        return sorted(parts.items())

    def _first(self) -> tuple[int, TensorDictBase]:
        """Return an actor, and the batch that is ready first."""
        for index in range(len(self._actors)):
            while list(self._running.values()).count(index) < _AHEAD:
                self._request(index)
        limit = None if self._timeout is None else monotonic() + self._timeout
        while True:
            left = None if limit is None else max(0.0, limit - monotonic())
            ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=left)
            if not ready:
                raise WorkerTimeoutError(
                    f"RayCollector: no actor has completed a batch within {self._timeout} s. Shut the collector down,"
                    " and allow more time with timeout= if the simulator is only slow"
                )
            index = self._running[ready[0]]
            oldest = next(
                reference for reference, actor in self._running.items() if actor == index
            )  # `wait` may skip it
            try:
                batch = self._received(oldest, index)
            except WorkerError as error:
                self._running.pop(oldest, None)
                self._request(self._replace(error))
                continue
            del self._running[oldest]
            self._request(index)  # the actor collects while this batch is used
            return index, batch

    def _request(self, index: int) -> None:
        self._running[self._actors[index].collect.remote()] = index

    def _received(self, reference: Any, index: int) -> TensorDictBase:
        try:
            batch = unpacked(self._result(reference, index))
        except WorkerError as error:
            if not error.ended:
                self._running.pop(reference, None)
            raise
        layout = {
            key: (tuple(leaf.shape), leaf.dtype) for key, leaf in batch.items(include_nested=True, leaves_only=True)
        }
        if self._layout is None:
            self._layout = layout
        if layout != self._layout:
            raise SpecError(
                f"RayCollector: actor {index} collects batches of other keys, shapes or dtypes than the first:"
                f" {layout} instead of {self._layout}"
            )
        return batch

    def _idle(self, *, keep: bool = False) -> None:
        """Wait until no actor collects; batches that were not returned are dropped unless `keep`."""
        for reference, index in list(self._running.items()):
            self._result(reference, index)
        if not keep:
            self._running = {}

    def _recover(self) -> None:
        self._running = {}
        self._call_all("call", "reset")
        self._interrupted = False

    def _call(self, index: int, method: str, *args: Any) -> Any:
        return self._result(getattr(self._actors[index], method).remote(*args), index)

    def _call_all(self, method: str, *args: Any) -> list[Any]:
        references = [getattr(actor, method).remote(*args) for actor in self._actors]
        return [self._result(reference, index) for index, reference in enumerate(references)]

    def _publish(self, weights: dict[str, Any]) -> None:
        self._weights, self._weights_version = self._ray.put(packed(weights)), self._version
        for actor in self._actors:
            actor.publish.remote(self._weights, self._weights_version)

    def _publish_each(self, weights: Mapping[int, tuple[dict[str, Any], int]]) -> None:
        for index, (values, version) in weights.items():
            self._actors[index].publish.remote(self._ray.put(packed(values)), version)

    def shutdown(self, timeout: float | None = None, *, close_env: bool = True, raise_on_error: bool = True) -> None:
        """Close the environments, end the actors, and end Ray if this collector started it. May be called twice.

        Args:
            timeout: Seconds after which actors are killed; `shutdown_timeout` if None.
            close_env: Ignored: environments end with their actors.
            raise_on_error: Ignored: nothing is raised.
        """
        del close_env, raise_on_error
        self._closed = True
        actors, self._actors = self._actors, []
        ray = self._ray
        if actors and ray.is_initialized():
            with suppress(Exception):  # one that has ended needs no end
                closing = [actor.call.remote("shutdown") for actor in actors]
                ray.wait(closing, num_returns=len(closing), timeout=self._patience if timeout is None else timeout)
            for actor in actors:
                with suppress(Exception):
                    ray.kill(actor)
        if self._owns_ray:
            self._owns_ray = False
            ray.shutdown()

    def __repr__(self) -> str:
        return (
            f"RayCollector(num_workers={self.num_workers}, sync={self.sync}, frames_per_batch={self.frames_per_batch},"
            f" frames={self._frames}/{self.total_frames})"
        )


def _actor_class(ray: Any) -> type:
    """`RayWorker`, whose weights arrive in a thread of their own while it collects."""

    class Actor(RayWorker):
        @ray.method(concurrency_group="weights")
        def publish(self, weights: Mapping[str, Any], version: int) -> None:
            super().publish(weights, version)

    return Actor


def _copy(policy: Any, device: Any) -> Any:
    """Return the policy, or a copy of it on the device of the actors."""
    if not isinstance(policy, nn.Module) or all(p.device == torch.device(device) for p in policy.parameters()):
        return policy
    return deepcopy(policy).to(device)


def _resources(given: Any, count: int) -> list[dict[str, Any]]:
    several = [given or {}] * count if given is None or isinstance(given, Mapping) else list(given)
    if len(several) != count:
        raise ArgumentError(f"RayCollector has {count} actors, and remote_configs has {len(several)} entries")
    return [{"num_cpus": 1, **one} for one in several]


def _failure(what: str, index: int, *, ended: bool) -> WorkerError:
    error = WorkerError(f"RayCollector: {what}")
    error.worker, error.ended = index, ended
    return error


def _cause(error: BaseException) -> str:
    """Return the first line of Ray's message, or that of the exception in the constructor."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if "creation task" in str(error) and lines else (lines[0] if lines else type(error).__name__)
