"""`RayCollector`: collectors in actors of Ray, on one machine or many."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from importlib import import_module
from math import ceil
from time import monotonic
from typing import Any, Self

import torch
from tensordict import TensorDictBase
from torch import nn

from rl.collectors import _foreign
from rl.collectors._collector import Collector, count_of
from rl.collectors._trajectories import extend_buffer as write_rows
from rl.collectors._trajectories import split_trajectories
from rl.collectors.distributed._actor import RayWorker, packed_weights, tensordict_of
from rl.collectors.multi._base import check_settings, makers_of, policies_of
from rl.collectors.multi._sync import MultiSyncCollector
from rl.collectors.weights._load import matching_weights
from rl.core.errors import CheckpointError, MissingExtraError, RLError, SpecError, WorkerError, WorkerTimeoutError

__all__ = ["RayCollector"]

_AHEAD = 2  # batches that an actor may collect before the first of them is taken


@_foreign.ray
class RayCollector:
    """Collectors in actors of Ray (``pip install "rl-collectors[ray]"``), on one machine or many.

    With ``sync=True`` a batch has one part of each actor, collected at the same time; its data equals that of a
    `Collector` in each actor. Without it, a batch is that of the actor that is ready first, and each actor collects at
    most two batches ahead. Keys are those of `Collector`, and ``policy_version`` int64: the number of weight updates
    that the actor had when it began the batch. Weights travel through Ray's object store, once for each machine.

    Args:
        create_env_fn: functions that make the environments, one for each actor; or one function and `num_collectors`.
        policy: a TensorDict module or function, of which every actor has a copy, on the CPU unless `policy_device` says
            otherwise; random actions if None.
        frames_per_batch: frames of a batch: of all actors with `sync`, else of one.
        total_frames: frames after which iteration ends, rounded up to whole batches; -1 for no end.
        sync: whether a batch consists of parts of all actors, or is that of one.
        cat_results: with `sync`, ``"stack"`` for ``[actors, *B, T]``; a dimension along which the parts ``[*B, T]`` are
            concatenated, 0 or -1 (time).
        num_collectors: number of actors if there is one function.
        create_env_kwargs: arguments of the functions, or a list of them.
        policy_factory: function that makes the policy in the actor, or a list of them; takes the place of `policy`.
        num_workers_per_collector: environments of an actor, each in a process of its own.
        collector_class: class of the collector in the actors; `Collector`, or `MultiSyncCollector` for several
            environments.
        collector_kwargs: further arguments of that class.
        ray_init_config: arguments of ``ray.init``, such as ``{"address": "auto"}`` for a running cluster. Ray is
            started on this machine if it is not running.
        remote_configs: resources of an actor, such as ``{"num_cpus": 1, "num_gpus": 0.2}``, or a list of them.
        init_random_frames: number of frames at the start with random actions, over all actors.
        postproc: function that is applied to every batch; its result is yielded.
        split_trajs: split every batch with `split_trajectories`.
        update_at_each_batch: call `update_policy_weights_` before every batch.
        weight_updater: a `WeightUpdaterBase` that is told about this collector.
        replay_buffer: buffer of this process that is extended by every batch; None is yielded instead.
        extend_buffer: whether a row of the buffer is a row of the batch, or a single step.
        restart: replace actors that have ended, with a warning; an error otherwise.
        timeout: seconds after which a batch that is missing is an error; None for no limit.
        shutdown_timeout: seconds after which `shutdown` kills the actors.
        settings: further arguments of `Collector`, for every actor.

    Raises:
        MissingExtraError: if Ray is not installed.
        SpecError: if an argument is out of range, or the functions or the policy cannot be sent.
        WorkerError: if an actor cannot be started.

    Example:
        >>> from rl.core.testing import CountingEnv
        >>> with RayCollector([CountingEnv] * 2, frames_per_batch=4, total_frames=12) as collector:  # doctest: +SKIP
        ...     sum(batch.numel() for batch in collector)
        12
    """

    def __init__(  # noqa: PLR0913  # TorchRL's arguments
        self,
        create_env_fn: Any = None,
        policy: Any = None,
        *,
        frames_per_batch: int,
        total_frames: int = -1,
        sync: bool = False,
        cat_results: str | int = "stack",
        num_collectors: int | None = None,
        create_env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        policy_factory: Callable[[], Any] | Sequence[Callable[[], Any]] | None = None,
        num_workers_per_collector: int = 1,
        collector_class: type | None = None,
        collector_kwargs: Mapping[str, Any] | None = None,
        ray_init_config: Mapping[str, Any] | None = None,
        remote_configs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        init_random_frames: int = 0,
        postproc: Callable[[TensorDictBase], Any] | None = None,
        split_trajs: bool = False,
        update_at_each_batch: bool = False,
        weight_updater: Any = None,
        replay_buffer: Any = None,
        extend_buffer: bool = True,
        restart: bool = False,
        timeout: float | None = None,
        shutdown_timeout: float = 10.0,
        **settings: Any,
    ) -> None:
        check_settings(settings, "RayCollector")
        if callable(create_env_fn) and num_collectors is None:
            raise SpecError("RayCollector got one function: say num_collectors=, or pass a list")
        makers = makers_of(create_env_fn, None, num_collectors, create_env_kwargs, "RayCollector")
        if policy is not None and policy_factory is not None:
            raise SpecError("RayCollector takes a policy or a policy_factory, got both")
        if cat_results not in ("stack", 0, -1):
            raise SpecError(f"RayCollector: cat_results is {cat_results!r}; it is 'stack', 0 or -1")
        if split_trajs and not extend_buffer:
            raise SpecError("RayCollector: split_trajs=True and extend_buffer=False would store padding as steps")
        frames = count_of("frames_per_batch", frames_per_batch, 1)
        each = count_of("num_workers_per_collector", num_workers_per_collector, 1)
        self.total_frames = (
            -1 if total_frames == -1 else count_of("total_frames", total_frames, 1, "or -1 for no end, ")
        )
        settings |= dict(collector_kwargs or {})
        settings["frames_per_batch"] = ceil(frames / len(makers)) if sync else frames
        settings["init_random_frames"] = ceil(count_of("init_random_frames", init_random_frames, 0) / len(makers))
        self.sync, self.policy = sync, policy
        self._cat, self._update_each, self._restart = cat_results, update_at_each_batch, restart
        self._postproc, self._split, self._buffer, self._by_batch = postproc, split_trajs, replay_buffer, extend_buffer
        self._timeout, self._patience = timeout, shutdown_timeout
        self._frames = self._version = 0
        self._closed = False
        kind = collector_class or (Collector if each == 1 else MultiSyncCollector)
        sent = _copy(policy, settings.get("policy_device", settings.get("device")) or "cpu")
        policies = policies_of(sent, policy_factory, len(makers), "RayCollector")
        self._parts = [
            (kind, make if each == 1 else [make] * each, one, policy_factory is not None, settings)
            for make, one in zip(makers, policies, strict=True)
        ]
        self._resources = _resources(remote_configs, len(makers))
        self._ray = ray = _ray()
        self._owns_ray = not ray.is_initialized()
        self._actors: list[Any] = []
        self._running: dict[Any, int] = {}  # batches that are being collected, and their actors
        try:
            if self._owns_ray:
                _start(ray, {"log_to_driver": False, **(ray_init_config or {})})
            self._set_up(len(makers), frames)
        except BaseException:
            self.shutdown()
            raise
        if weight_updater is not None:
            weight_updater.register_collector(self)

    def _set_up(self, count: int, frames: int) -> None:
        self._lives, self._layout = [0] * count, None
        self._weights = None  # in the object store
        self._actors = [self._make(index) for index in range(count)]
        found = [self._result(actor.describe.remote(), i) for i, actor in enumerate(self._actors)]
        self._names = {
            name: torch.empty(shape, dtype=dtype, device="meta") for name, (shape, dtype) in found[0]["weights"].items()
        }
        sizes = [one["frames_per_batch"] for one in found]
        self.frames_per_batch = sum(sizes) if self.sync else sizes[0]
        said = [] if self.frames_per_batch == frames else [f"each batch has {self.frames_per_batch} frames"]
        if self.total_frames > 0 and self.total_frames % self.frames_per_batch:
            whole = ceil(self.total_frames / self.frames_per_batch) * self.frames_per_batch
            said.append(f"total_frames={self.total_frames} is no multiple of that: {whole} frames will be collected")
        if said:
            warnings.warn(f"RayCollector: {'; '.join(said)}", stacklevel=5)

    # ---- actors

    def _make(self, index: int) -> Any:
        ray = self._ray
        try:
            ray.cloudpickle.dumps(self._parts[index])
        except Exception as error:  # whatever an object raises
            raise SpecError(
                f"RayCollector: the function of environment {index}, the policy or a setting cannot be sent to an actor"
                f" ({error}): pass policy_factory=, and functions that hold no open files or locks"
            ) from error
        remote = ray.remote(concurrency_groups={"weights": 1}, **self._resources[index])(_actor_class(ray))
        place = (index, len(self._parts), self._lives[index])
        seed = hash((torch.initial_seed(), *place)) & ((1 << 62) - 1)
        return remote.remote(*self._parts[index], place, seed, self._weights, self._version)

    def _result(self, reference: Any, index: int) -> Any:
        """The result of an actor; its exceptions as a `WorkerError`."""
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
        """Make a new actor in the place of one that has ended, if that was asked for.

        Returns:
            Its number.
        """
        index = error.worker
        if not (self._restart and error.ended) or index is None:
            raise error
        warnings.warn(f"{str(error).splitlines()[0]}. It was replaced, its running episodes are lost", stacklevel=4)
        with suppress(Exception):
            self._ray.kill(self._actors[index])
        self._running = {batch: actor for batch, actor in self._running.items() if actor != index}
        self._lives[index] += 1
        self._actors[index] = self._make(index)
        return index

    # ---- collecting

    def __iter__(self) -> Iterator[Any]:
        while self.total_frames < 0 or self._frames < self.total_frames:
            yield self.collect()

    def collect(self) -> Any:
        """Collect the next batch, whether or not `total_frames` is reached; None if it goes to a replay buffer.

        Raises:
            WorkerError: if an actor fails, has ended, or takes longer than `timeout`.
            RLError: after `shutdown`.
        """
        if self._closed:
            raise RLError("this collector was shut down: make a new one")
        if self._update_each:
            self.update_policy_weights_()
        batch: Any = self._all() if self.sync else self._first()
        self._frames += batch.numel()
        if self._split:
            batch = split_trajectories(batch)
        if self._postproc is not None:
            batch = self._postproc(batch)
        if self._buffer is None:
            return batch
        write_rows(self._buffer, batch, by_batch=self._by_batch)
        return None

    def rollout(self) -> Any:
        """The same as `collect`."""
        return self.collect()

    def _all(self) -> TensorDictBase:
        """The batches of all actors, in their order."""
        for index in range(len(self._actors)):
            if index not in self._running.values():  # after an error some have a batch already
                self._ask(index)
        parts: dict[int, TensorDictBase] = {}
        while len(parts) < len(self._actors):
            reference, index = next((ref, one) for ref, one in self._running.items() if one not in parts)
            try:
                parts[index] = self._received(reference, index)
            except WorkerError as error:
                self._ask(self._replace(error))
        self._running = {}
        ordered: Any = [parts[index] for index in range(len(self._actors))]
        if isinstance(self._cat, str):
            stacked: Any = torch.stack(ordered)
            stacked.names = [*[None] * (stacked.ndim - 1), "time"]
            return stacked
        joined: Any = torch.cat(ordered, dim=self._cat)
        return joined

    def _first(self) -> TensorDictBase:
        """The batch that is ready first."""
        for index in range(len(self._actors)):
            while list(self._running.values()).count(index) < _AHEAD:
                self._ask(index)
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
            try:
                batch = self._received(ready[0], index)
            except WorkerError as error:
                self._running.pop(ready[0], None)
                self._ask(self._replace(error))
                continue
            del self._running[ready[0]]
            self._ask(index)  # the actor collects while this batch is used
            return batch

    def _ask(self, index: int) -> None:
        self._running[self._actors[index].collect.remote()] = index

    def _received(self, reference: Any, index: int) -> TensorDictBase:
        try:
            batch = tensordict_of(self._result(reference, index))
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

    def _idle(self) -> None:
        """Wait until no actor collects; batches that were not returned are dropped."""
        for reference, index in list(self._running.items()):
            self._result(reference, index)
        self._running = {}

    # ---- weights

    def update_policy_weights_(self, policy_or_weights: Any = None) -> None:
        """Give all actors new weights, which they use from their next batch on.

        Args:
            policy_or_weights: a policy of the same structure, its ``state_dict()``, or its parameters as a TensorDict.
                None for the policy that the collector was given.

        Raises:
            SpecError: if there is no policy with parameters, or the weights do not fit it. Nothing is changed.
        """
        source = self.policy if policy_or_weights is None else policy_or_weights
        if not self._names or source is None:
            raise SpecError(
                "RayCollector.update_policy_weights_ has no weights to send: give the collector a policy with"
                " parameters, or pass the weights"
            )
        new = matching_weights(self._names, source, "the policy of the actors")
        self._weights = self._ray.put(packed_weights(new))
        self._version += 1
        for actor in self._actors:
            actor.publish.remote(self._weights, self._version)

    @property
    def policy_version(self) -> int:
        """Number of weight updates; ``policy_version`` in a batch says with which it was collected."""
        return self._version

    # ---- control

    def explain(self) -> str:
        """Describe stages, keys, shapes, devices and casts of actor 0; all actors are alike."""
        return self._result(self._actors[0].call.remote("explain"), 0)

    def reset(self) -> None:
        """Begin the next batch with a reset of all environments, and with new trajectory ids."""
        self._call_all("reset")

    def set_seed(self, seed: int) -> int:
        """Seed the environments, each with the seed that the one before it returned, and begin new episodes.

        Returns:
            The seed for the next environment.
        """
        self._idle()
        for index, actor in enumerate(self._actors):
            seed = self._result(actor.call.remote("set_seed", seed), index)
        return seed

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the actors' collectors and the number of frames."""
        return {"frames": self._frames, "workers": self._call_all("state_dict")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`.

        Raises:
            CheckpointError: if the number of actors differs.
        """
        parts = state.get("workers", [])
        if len(parts) != len(self._actors):
            raise CheckpointError(f"RayCollector has {len(self._actors)} actors, the state {len(parts)}")
        self._idle()
        for index, (actor, part) in enumerate(zip(self._actors, parts, strict=True)):
            self._result(actor.call.remote("load_state_dict", part), index)
        self._frames = state["frames"]

    def _call_all(self, name: str) -> list[Any]:
        self._idle()
        references = [actor.call.remote(name) for actor in self._actors]
        return [self._result(reference, index) for index, reference in enumerate(references)]

    @property
    def collected_frames(self) -> int:
        """Number of collected frames, over all batches."""
        return self._frames

    @property
    def num_workers(self) -> int:
        """Number of actors."""
        return len(self._parts)

    @property
    def stats(self) -> list[dict[str, float]]:
        """The `Collector.stats` of each actor."""
        self._idle()
        return [self._result(actor.attribute.remote("stats"), i) for i, actor in enumerate(self._actors)]

    def shutdown(self, timeout: float | None = None) -> None:
        """Close the environments, end the actors, and end Ray if this collector started it. May be called twice.

        Args:
            timeout: seconds after which actors are killed; `shutdown_timeout` if None.
        """
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

    async_shutdown = shutdown

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def __len__(self) -> int:
        """Number of batches of an iteration from the beginning."""
        if self.total_frames < 0:
            raise TypeError("a RayCollector without total_frames has no length")
        return ceil(self.total_frames / self.frames_per_batch)

    def __repr__(self) -> str:
        return (
            f"RayCollector(num_workers={self.num_workers}, sync={self.sync}, frames_per_batch={self.frames_per_batch},"
            f" frames={self._frames}/{self.total_frames})"
        )


def _ray() -> Any:
    try:
        return import_module("ray")
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            'RayCollector needs Ray, which is not installed: pip install "rl-collectors[ray]"'
        ) from error


def _start(ray: Any, config: Mapping[str, Any]) -> None:
    try:
        ray.init(**config)
    except ConnectionError as error:
        raise RLError(
            f"RayCollector finds no Ray cluster at {config.get('address')!r} ({str(error).splitlines()[0]}): start one"
            " with `ray start --head`, or leave the address out to start Ray here"
        ) from error


def _actor_class(ray: Any) -> type:
    """`RayWorker`, whose weights arrive in a thread of their own while it collects."""

    class Actor(RayWorker):
        @ray.method(concurrency_group="weights")
        def publish(self, weights: Mapping[str, Any], version: int) -> None:
            super().publish(weights, version)

    return Actor


def _copy(policy: Any, device: Any) -> Any:
    """The policy, or a copy of it on the device of the actors."""
    if not isinstance(policy, nn.Module) or all(p.device == torch.device(device) for p in policy.parameters()):
        return policy
    return deepcopy(policy).to(device)


def _resources(given: Any, count: int) -> list[dict[str, Any]]:
    several = [given or {}] * count if given is None or isinstance(given, Mapping) else list(given)
    if len(several) != count:
        raise SpecError(f"RayCollector has {count} actors, and remote_configs has {len(several)} entries")
    return [{"num_cpus": 1, **one} for one in several]


def _failure(what: str, index: int, *, ended: bool) -> WorkerError:
    error = WorkerError(f"RayCollector: {what}")
    error.worker, error.ended = index, ended
    return error


def _cause(error: BaseException) -> str:
    """The first line of Ray's message, or that of the exception in the constructor."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if "creation task" in str(error) and lines else (lines[0] if lines else type(error).__name__)
