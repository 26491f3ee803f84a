"""Base of collectors with workers, which are processes or actors of Ray."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor
from torch.utils._pytree import tree_map_only

from rl.collectors._base import CollectorBase
from rl.collectors._collector import Collector
from rl.collectors._pipeline.arguments import count_of, rounding, total_of
from rl.collectors._pipeline.output import Output
from rl.collectors.weights._load import matching_weights
from rl.core.arguments import check_arguments
from rl.core.errors import CheckpointError, SpecError, WorkerError, issue_warning

__all__ = ["WorkersBase", "check_cat_results"]


class WorkersBase(CollectorBase):
    """Base of collectors with workers: their settings, their weights, and what is done with a batch."""

    _kind = "workers"

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
        init_random_frames: int = 0,
        postproc: Callable[[TensorDictBase], Any] | None = None,
        split_trajs: bool = False,
        update_at_each_batch: bool = False,
        weight_updater: Any = None,
        replay_buffer: Any = None,
        extend_buffer: bool = True,
        restart: bool = False,
        timeout: float | None = None,
        **settings: Any,
    ) -> None:
        owner = type(self).__name__
        _check_settings(settings, owner)
        makers = _makers_of(create_env_fn, env_fns, num_workers, create_env_kwargs, owner)
        if policy is not None and policy_factory is not None:
            raise SpecError(f"{owner} takes a policy or a policy_factory, got both")
        self.policy, self._makes_policy = policy, policy_factory is not None
        self.total_frames = total_of(total_frames)
        self._output = Output(postproc, None, replay_buffer, extend_buffer=extend_buffer, split_trajs=split_trajs)
        self._update_each, self._restart, self._timeout = update_at_each_batch, restart, timeout
        self._lives = [0] * len(makers)  # how often each worker was replaced
        self._version = 0
        frames = count_of("frames_per_batch", frames_per_batch, 1)
        shares = {
            "frames_per_batch": self._share(frames, len(makers)),
            "init_random_frames": ceil(count_of("init_random_frames", init_random_frames, 0) / len(makers)),
        }
        policies = _policies_of(policy, policy_factory, len(makers), owner)
        self._launch(makers, policies, settings, shares)
        try:
            self._connect()
        except BaseException:
            self.shutdown()
            raise
        if weight_updater is not None:
            weight_updater.register_collector(self)

    def _connect(self) -> None:
        """Read names and shapes of the weights, and the frames of a batch, from the workers."""
        states = self._call_all("state_of_policy")
        self._names: dict[str, Tensor] = states[0]
        for index, state in enumerate(states):
            matching_weights(self._names, state, f"worker {index}, whose policy has others than worker 0")
        self.frames_per_batch = self._frames_of(self._call_all("attribute", "frames_per_batch"))
        for message in rounding(self.total_frames, self.frames_per_batch):
            issue_warning(message)

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
        """The next batch, in memory of its own unless it goes to a replay buffer."""

    def _release(self) -> None:
        """Called when the memory of the last batch may be written again."""

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
        """Send weights to the workers, as the version after `_version`."""

    # ---- collecting

    def collect(self) -> Any:
        """Collect the next batch, whether or not `total_frames` is reached; None if it goes to a replay buffer.

        Raises:
            WorkerError: if a worker fails, has ended, or takes longer than `timeout`.
            RLError: after `shutdown`.
        """
        self._check_open()
        if self._torn:
            self._recover()
        if self._update_each:
            self.update_policy_weights_()
        with self._guard_state():
            batch = self._next()
            self._frames += batch.numel()
            batch = self._output.finish(batch)
            self._release()
            return batch

    def _pause(self, *, keep: bool = False) -> None:
        """Let no worker collect: `_idle`, also after Ctrl-C."""
        if self._torn:
            self._recover()
        with self._guard_state():
            self._idle(keep=keep)

    def start(self) -> None:
        """Not available: the workers collect in the background themselves.

        Raises:
            SpecError: always.
        """
        raise SpecError(
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
        weights = matching_weights(self._names, source, f"the policy of the {self._kind}")
        self._publish(weights)
        self._version += 1

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

    def set_seed(self, seed: int) -> int:
        """Seed the environments, each with the seed that the one before it returned, and begin new episodes.

        Returns:
            The seed for the next environment.
        """
        self._pause()
        for index in range(self.num_workers):
            seed = self._call(index, "call", "set_seed", seed)
        return seed

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the workers' collectors and the number of frames, without batches not yet returned."""
        self._pause(keep=True)
        return {"frames": self._frames, "workers": self._call_all("call", "state_dict")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`.

        Raises:
            CheckpointError: if the number of workers differs.
        """
        parts = state.get("workers", [])
        if len(parts) != self.num_workers:
            raise CheckpointError(f"{type(self).__name__} has {self.num_workers} {self._kind}, the state {len(parts)}")
        self._pause()
        for index, part in enumerate(parts):  # a process that was forked cannot receive tensors of a CUDA device
            self._call(index, "call", "load_state_dict", tree_map_only(Tensor, Tensor.cpu, part))
        self._frames = state["frames"]

    @property
    def num_workers(self) -> int:
        """Number of workers."""
        return len(self._lives)

    @property
    def stats(self) -> list[dict[str, float]]:
        """The `Collector.stats` of each worker."""
        self._pause(keep=True)
        return self._call_all("attribute", "stats")

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


def check_cat_results(value: Any, owner: str) -> None:
    """Raise unless `cat_results` is ``"stack"``, 0 or -1."""
    if value not in ("stack", 0, -1):
        raise SpecError(f"{owner}: cat_results is {value!r}; it is 'stack', 0 or -1")


def _check_settings(settings: Mapping[str, Any], owner: str) -> None:
    """Refuse settings that `Collector` does not have, or that do not apply to batches of workers."""
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


def _makers_of(create_env_fn: Any, env_fns: Any, num_workers: int | None, kwargs: Any, owner: str) -> list[Any]:
    """Return a function without arguments for each worker."""
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


def _policies_of(policy: Any, factory: Any, count: int, owner: str) -> list[Any]:
    """The policy or the function that makes it, for each worker."""
    if factory is None:
        return [policy] * count
    several = [factory] * count if callable(factory) else list(factory)
    if len(several) != count:
        raise SpecError(f"{owner} has {count} workers, and policy_factory has {len(several)} entries")
    return several
