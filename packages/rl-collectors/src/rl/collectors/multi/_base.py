"""Base of collectors with workers, which are processes or actors of Ray."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil
from pickle import PicklingError
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.utils._pytree import tree_map_only

from rl.collectors._background import CollectorBase
from rl.collectors._collector import Collector
from rl.collectors._output import Output
from rl.collectors._pipeline import as_random_frames, as_total_frames, rounding_messages
from rl.collectors._trajectories import WholeTrajectories, last_steps
from rl.collectors.weights import matching_weights
from rl.core.arguments import as_integer, check_arguments
from rl.core.errors import ArgumentError, CheckpointError, RLError, WorkerError, issue_warning
from rl.core.recurrent import keep_modes
from rl.core.state import pack, unpack
from rl.core.workers import SharedLeaves


class WorkersBase(CollectorBase):
    """Base of collectors with workers: their settings, their weights, and what is done with a batch."""

    _kind = "workers"
    _cat: str | int = "stack"
    """How the batches of the workers are joined; see `join_of`."""
    _ahead = False
    """Whether workers collect ahead: their states are then later than the batches that were returned."""

    def __init__(  # noqa: PLR0913  # TorchRL's arguments
        self,
        create_env_fn: Sequence[Callable[..., Any]] | Callable[..., Any] | None,
        policy: Any,
        *,
        frames_per_batch: int,
        total_frames: int = -1,
        env_fns: Sequence[Callable[..., Any]] | None = None,
        num_workers: int | None = None,
        create_env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        policy_factory: Callable[[], Any] | Sequence[Callable[[], Any]] | None = None,
        init_random_frames: int | None = 0,
        postproc: Callable[[TensorDictBase], Any] | None = None,
        split_trajs: bool = False,
        update_at_each_batch: bool = False,
        weight_updater: Any = None,
        replay_buffer: Any = None,
        extend_buffer: bool = True,
        trajs_per_batch: int | None = None,
        traj_format: str = "padded",
        restart: bool = False,
        timeout: float | None = None,
        **settings: Any,
    ) -> None:
        owner = type(self).__name__
        _check_settings(settings, owner)
        makers = _makers_of(create_env_fn, env_fns, num_workers, create_env_kwargs, owner)
        if policy is not None and policy_factory is not None:
            raise ArgumentError(f"{owner} takes a policy or a policy_factory, got both")
        self.policy, self._makes_policy = policy, policy_factory is not None
        self.replay_buffer = replay_buffer
        self._hooks = {name: settings.get(name) for name in ("pre_collect_hook", "post_collect_hook")}
        self._assigned: dict[str, Any] = {}  # hooks that the workers were not created with
        self.total_frames = as_total_frames(total_frames, owner)
        self._output = Output(
            postproc,
            None,
            replay_buffer,
            extend_buffer=extend_buffer,
            split_trajs=split_trajs,
            trajs_per_batch=trajs_per_batch,
            traj_format=traj_format,
            set_truncated=bool(settings.get("set_truncated")),
        )
        self._whole = self._output.whole_trajectories()
        if self._whole is not None and settings.get("track_traj_ids") is False:
            raise ArgumentError(f"{owner}: trajs_per_batch={trajs_per_batch} needs track_traj_ids=True, got False")
        self._update_each, self._restart, self._timeout = update_at_each_batch, restart, timeout
        self._own_weights: dict[int, tuple[dict[str, Any], int]] = {}  # of single workers, and their version
        self._lives = [0] * len(makers)  # how often each worker was replaced
        self._version = 0
        frames = as_integer(frames_per_batch, owner, "frames_per_batch", 1)
        shares = {
            "frames_per_batch": self._share(frames, len(makers)),
            "init_random_frames": ceil(as_random_frames(init_random_frames, owner) / len(makers)),
        }
        policies = _policies_of(policy, policy_factory, len(makers), owner)
        self._launch(makers, policies, settings, shares)
        try:
            self._connect()
        except BaseException:
            self.shutdown()
            raise
        self.weight_updater = weight_updater
        self._fix_settings()

    @classmethod
    def _settings(cls) -> frozenset[str]:
        return super()._settings() | Collector._settings()  # noqa: SLF001  # a base class's, which workers get

    def _connect(self) -> None:
        """Read names and shapes of the weights, and the frames of a batch, from the workers."""
        states = self._call_all("state_of_policy")
        self._names: dict[str, Tensor] = states[0]
        for index, state in enumerate(states):
            matching_weights(self._names, state, f"worker {index}, whose policy has others than worker 0")
        self.frames_per_batch = self._frames_of(self._call_all("attribute", "frames_per_batch"))
        for message in rounding_messages(self.total_frames, self.frames_per_batch):
            issue_warning(message)
        self._check_rows()

    def _check_rows(self) -> None:
        """Reject a storage that counts more dimensions than a batch has whose parts are concatenated."""
        counted = getattr(getattr(self.replay_buffer, "storage", None), "ndim", 1)
        reshaped = self._output.postproc is not None or self._output.split_trajs or self._whole is not None
        if counted < 2 or self._cat == "stack" or self._ahead or not self._output.extend_buffer or reshaped:
            return
        found = self._call(0, "find", "env.batch_size")
        if isinstance(found, tuple) and len(found[0]) + 1 < counted:
            raise ArgumentError(
                f"{type(self).__name__}: the storage of replay_buffer has ndim={counted}, and a batch"
                f" {len(found[0]) + 1} dimension(s), as the parts of the workers are concatenated: pass"
                ' cat_results="stack" for [workers, time], or ndim=1'
            )

    # ---- written by the subclass

    @abstractmethod
    def _launch(self, makers: list[Any], policies: list[Any], settings: dict[str, Any], shares: dict[str, int]) -> None:
        """Start the workers, whose collectors get `settings` and `shares`."""

    @abstractmethod
    def _share(self, frames: int, workers: int) -> int:
        """Frames of one worker for a batch of `frames`."""

    @abstractmethod
    def _frames_of(self, sizes: Sequence[int]) -> int:
        """Frames of a batch, from the frames of the batches of the workers."""

    @abstractmethod
    def _next(self) -> TensorDictBase:
        """Return the next batch, in memory of its own unless it goes to a replay buffer."""

    @abstractmethod
    def _next_parts(self) -> list[tuple[int, TensorDictBase]]:
        """Return the workers, and their parts ``[*B, T]`` of the next batch, in memory of its own."""

    def _release(self) -> None:
        """Prepare for a new batch: the memory of the last batch may be written again."""

    @abstractmethod
    def _idle(self, *, keep: bool = False) -> None:
        """Wait until no worker collects; batches that were not returned are dropped unless `keep`."""

    @abstractmethod
    def _recover(self) -> None:
        """Drop what was collected before Ctrl-C, which may have come anywhere, and begin with a reset."""

    @abstractmethod
    def _call(self, index: int, method: str, *args: Any) -> Any:
        """Call a method of a worker."""

    @abstractmethod
    def _call_all(self, method: str, *args: Any) -> list[Any]:
        """Call a method of all workers."""

    @abstractmethod
    def _publish(self, weights: dict[str, Any]) -> None:
        """Send weights to all workers, as the version `_version`."""

    @abstractmethod
    def _publish_each(self, weights: Mapping[int, tuple[dict[str, Any], int]]) -> None:
        """Send weights and their version to some workers."""

    # ---- collecting

    def collect(self) -> Any:
        """Collect the next batch, whether or not `total_frames` is reached; None if it goes to a replay buffer.

        Raises:
            WorkerError: If a worker fails, has ended, or takes longer than `timeout`.
            RLError: After `shutdown`.
        """
        batch = self._next_result(-1)
        assert batch is not None
        return batch[0]

    def _next_result(self, until: int) -> tuple[Any] | None:
        self._check_open()
        if self._interrupted:
            self._recover()
        if self._update_each:
            self.update_policy_weights_()
        with keep_modes():
            with self._guard_state():
                batch = self._gather() if self._whole is None else self._trajectories(self._whole, until)
            if batch is None:
                return None
            out = self._output.finish(batch)
            if self._whole is None:
                with self._guard_state():
                    self._release()
            return (out,)

    def _gather(self) -> TensorDictBase:
        batch = self._next()
        self._frames += batch.numel()
        return batch

    def _trajectories(self, whole: WholeTrajectories, until: int) -> TensorDictBase | None:
        while not whole.ready and (until < 0 or self._frames < until):
            for index, part in self._next_parts():
                self._frames += part.numel()
                whole.add(part, last_steps(part), index)
            self._release()
        return whole.take()

    def _pause(self, *, keep: bool = False) -> None:
        """Let no worker collect: `_idle`, also after Ctrl-C."""
        if self._interrupted:
            self._recover()
        with self._guard_state():
            self._idle(keep=keep)

    def start(self) -> None:
        """Not available: the workers collect in the background themselves.

        Raises:
            RLError: Always.
        """
        raise RLError(
            f"{type(self).__name__} has no start(): iterate over it; its workers collect in other processes. A"
            " Collector has a background thread"
        )

    def _count_replacement(self, error: WorkerError) -> int:
        """Warn that a worker that has ended is replaced, and return its index; raise `error` without `restart`."""
        index = error.worker
        if not (self._restart and error.ended) or index is None:
            raise error
        issue_warning(f"{str(error).splitlines()[0]}. It was replaced, its running episodes are lost")
        self._lives[index] += 1
        return index

    # ---- weights

    def _use_weights(self, source: Any, worker_ids: int | Sequence[int] | None) -> None:
        each = _by_worker(source, worker_ids)
        if each is None:
            weights = self._matching(source)
            self._version += 1  # before they are sent: after Ctrl-C in between, others have a version of their own
            self._own_weights = {}
            self._publish(weights)
        else:
            others = [index for index in each if type(index) is not int or not 0 <= index < self.num_workers]
            if others or not each:
                raise ArgumentError(
                    f"{type(self).__name__}.update_policy_weights_ got the workers {others or 'of an empty list'};"
                    f" expected numbers from 0 to {self.num_workers - 1}"
                )
            own = {index: (self._matching(weights), self._version + 1) for index, weights in each.items()}
            self._version += 1
            self._own_weights |= own
            self._publish_each(own)

    def _matching(self, given: Any) -> dict[str, Any]:
        source = self.policy if given is None else given
        if not self._names or source is None:
            raise ArgumentError(
                f"{type(self).__name__}.update_policy_weights_ has no weights to send: give the collector a policy with"
                " parameters, or pass the weights"
            )
        return matching_weights(self._names, source, f"the policy of the {self._kind}")

    @property
    def policy_version(self) -> int:
        """Number of weight updates; ``policy_version`` in a batch is the number at its collection."""
        return self._version

    # ---- control

    def explain(self) -> str:
        """Describe stages, keys, shapes, devices and casts of worker 0; all workers are alike."""
        self._pause(keep=True)
        return self._call(0, "call", "explain")

    def reset(self) -> None:
        """Begin the next batch with a reset of all environments, and with new trajectory ids."""
        self._pause()
        self._call_all("call", "reset")

    def set_seed(self, seed: int, *, static_seed: bool = False) -> int:
        """Seed the environments, each with the seed that the one before it returned, and begin new episodes.

        Args:
            seed: Seed of the first environment.
            static_seed: Whether all environments have this seed, which is returned.

        Returns:
            The seed for the next environment.
        """
        self._pause()
        for index in range(self.num_workers):
            following = self._call(index, "call", "set_seed", seed)
            seed = seed if static_seed else following
        return seed

    def get_distant_attr(self, attr: str) -> list[Any]:
        """Return an attribute of each worker's collector: a dotted path, such as ``"env.batch_size"``.

        Raises:
            AttributeError: If there is none.
        """
        self._pause(keep=True)
        return [self._found(result) for result in self._call_all("find", attr)]

    def _first_attribute(self, path: str) -> Any:
        self._pause(keep=True)
        return self._found(self._call(0, "find", path))

    @staticmethod
    def _found(result: tuple[Any] | str) -> Any:
        if isinstance(result, str):
            raise AttributeError(result)
        return result[0]

    def map_fn(
        self,
        method_name: str,
        list_of_args: Sequence[Sequence[Any]] | None = None,
        list_of_kwargs: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[Any]:
        """Call a method of each worker's collector, with a set of arguments for each; see `Collector.map_fn`."""
        calls = self._calls(method_name, list_of_args, list_of_kwargs, self.num_workers)
        self._pause(keep=True)
        return [self._call(index, "apply", method_name, *both) for index, both in enumerate(calls)]

    @property
    def pre_collect_hook(self) -> Any:
        """Function that each worker calls before every batch, or None; it may be assigned."""
        return self._hooks["pre_collect_hook"]

    @pre_collect_hook.setter
    def pre_collect_hook(self, hook: Any) -> None:
        self._set_hook("pre_collect_hook", hook)

    @property
    def post_collect_hook(self) -> Any:
        """Function that each worker calls with every batch, or None; it may be assigned."""
        return self._hooks["post_collect_hook"]

    @post_collect_hook.setter
    def post_collect_hook(self, hook: Any) -> None:
        self._set_hook("post_collect_hook", hook)

    def _set_hook(self, name: str, hook: Any) -> None:
        self._pause(keep=True)
        try:
            self._call_all("call", "__setattr__", name, hook)
        except (AttributeError, TypeError, PicklingError) as error:
            raise ArgumentError(
                f"{type(self).__name__}.{name} cannot be sent to the workers ({error}): assign a function of a module,"
                " or pass it to the constructor"
            ) from error
        self._hooks[name] = self._assigned[name] = hook

    def _assign_again(self, index: int) -> None:
        """Give a worker that replaces another what was assigned since it was created."""
        for name, hook in self._assigned.items():
            self._call(index, "call", "__setattr__", name, hook)

    @property
    def _has_whole_trajectories(self) -> bool:
        return self._whole is not None

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the workers' collectors and the number of frames, without batches not yet returned."""
        self._pause(keep=True)
        whole = None if self._whole is None else pack(self._whole.state(), type(self).__name__)
        workers = self._call_all("call", "state_dict")
        return {"frames": self._frames, "workers": workers, "trajectories": whole}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`; with `trajs_per_batch`, workers that collect ahead begin new trajectories.

        Raises:
            CheckpointError: If the number of workers differs.
        """
        parts = state.get("workers", [])
        if len(parts) != self.num_workers:
            raise CheckpointError(f"{type(self).__name__} has {self.num_workers} {self._kind}, the state {len(parts)}")
        self._pause()
        for index, part in enumerate(parts):  # a process that was forked cannot receive tensors of a CUDA device
            self._call(index, "call", "load_state_dict", tree_map_only(Tensor, Tensor.cpu, part))
        self._frames = state["frames"]
        if self._whole is not None:
            whole = unpack(state.get("trajectories"), type(self).__name__, torch.device("cpu"))
            self._whole.load(whole, exact=not self._ahead)
            if self._ahead:  # the running trajectories have steps in batches that were not returned
                self._call_all("call", "reset")

    @property
    def num_workers(self) -> int:
        """Number of workers."""
        return len(self._lives)

    @property
    def stats(self) -> list[dict[str, float]]:
        """The `Collector.stats` of each worker."""
        self._pause(keep=True)
        return self._call_all("attribute", "stats")

    def async_shutdown(self, timeout: float | None = None) -> None:
        """Shut down: the same as `shutdown`."""
        self.shutdown(timeout)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(num_workers={self.num_workers}, frames_per_batch={self.frames_per_batch},"
            f" frames={self._frames}/{self.total_frames})"
        )


def join_of(cat_results: Any, settings: Mapping[str, Any], owner: str) -> str | int:
    """Return how the batches of workers are joined; None stacks them, unless their rows become rows of a buffer.

    Raises:
        ArgumentError: Unless it is None, ``"stack"``, 0 or -1.
    """
    if cat_results not in (None, "stack", 0, -1):
        raise ArgumentError(f"{owner}: cat_results is {cat_results!r}; it is 'stack', 0 or -1")
    if cat_results is not None:
        return cat_results
    rows = settings.get("replay_buffer") is not None and settings.get("extend_buffer", True)
    return 0 if rows and settings.get("trajs_per_batch") is None else "stack"


def _by_worker(source: Any, worker_ids: Any) -> dict[Any, Any] | None:
    """Return the weights by number of the worker; None if all have the same."""
    if isinstance(source, Mapping) and {type(key) for key in source.keys()} == {int}:  # TensorDicts
        if worker_ids is not None:
            raise ArgumentError(
                f"update_policy_weights_ got weights of the workers {[*source]}, and worker_ids={worker_ids}: pass one"
                " of the two"
            )
        return dict(source)
    if worker_ids is None:
        return None
    return dict.fromkeys(worker_ids if isinstance(worker_ids, Sequence) else [worker_ids], source)


def _check_settings(settings: Mapping[str, Any], owner: str) -> None:
    """Reject settings that `Collector` does not have, or that do not apply to batches of workers."""
    check_arguments(Collector, settings, owner)
    refused = {
        "interruptor": "MultiSyncCollector(preemptive_threshold=...) has one of its own",
        "return_same_td": "a batch is a copy of shared memory",
    }
    for name, why in refused.items():
        if settings.get(name) not in (None, False):
            raise ArgumentError(f"{owner} has no {name}: {why}")


def _makers_of(create_env_fn: Any, env_fns: Any, num_workers: int | None, kwargs: Any, owner: str) -> list[Any]:
    """Return a function without arguments for each worker."""
    given = create_env_fn if env_fns is None else env_fns
    if given is None or (create_env_fn is not None and env_fns is not None):
        raise ArgumentError(
            f"{owner} takes a list of functions that create environments, as create_env_fn or as env_fns"
        )
    if callable(given):
        if num_workers is None:
            raise ArgumentError(f"{owner} got one function: say num_workers=, or pass a list")
        given = [given] * num_workers
    makers = list(given)
    if not makers or not all(callable(make) for make in makers) or num_workers not in (None, len(makers)):
        raise ArgumentError(
            f"{owner} takes functions that create environments, one for each worker"
            f" ({'any number' if num_workers is None else num_workers}), got {makers!r:.200}"
        )
    if kwargs is None:
        return makers
    several = [kwargs] * len(makers) if isinstance(kwargs, Mapping) else list(kwargs)
    if len(several) != len(makers):
        raise ArgumentError(f"{owner} has {len(makers)} workers, and create_env_kwargs {len(several)} entries")
    return [partial(make, **one) for make, one in zip(makers, several, strict=True)]


def _policies_of(policy: Any, factory: Any, count: int, owner: str) -> list[Any]:
    """Return the policy or the function that creates it, for each worker."""
    if factory is None:
        return [policy] * count
    several = [factory] * count if callable(factory) else list(factory)
    if len(several) != count:
        raise ArgumentError(f"{owner} has {count} workers, and policy_factory has {len(several)} entries")
    return several


class Interruptor:
    """Flag in shared memory that ends the batch of every ``Collector(interruptor=...)`` within a few steps.

    Create it before the worker processes, and pass it to their collectors.

    Example:
        >>> from rl.collectors import Collector
        >>> from rl.testing import CountingEnv
        >>> interruptor = Interruptor()
        >>> collector = Collector(CountingEnv, frames_per_batch=100, interruptor=interruptor)
        >>> interruptor.stop_collection()
        >>> collector.collect().numel()
        1
        >>> interruptor.start_collection()
        >>> collector.collect().numel()
        100
    """

    def __init__(self) -> None:
        self._memory = SharedLeaves()
        self._mapped: Tensor | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_memory": self._memory, "_mapped": None}  # each process maps the memory itself

    @property
    def _flag(self) -> Tensor:
        if self._mapped is None:
            self._mapped = self._memory.map({"stopped": ((), torch.uint8)})["stopped"]
        return self._mapped

    def stop_collection(self) -> None:
        """End batches after their next few steps."""
        self._flag.fill_(1)

    def start_collection(self) -> None:
        """Let batches be complete again."""
        self._flag.fill_(0)

    def collection_stopped(self) -> bool:
        """Whether batches end early."""
        return bool(self._flag)

    def close(self) -> None:
        """Close the file of the memory; the flag stays valid. May be called twice."""
        self._memory.close()
