"""Collectors that can collect in a background thread: `start`, `pause`, `is_running`."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from math import ceil
from operator import attrgetter
from threading import Condition, Thread, current_thread
from typing import Any, ClassVar, Self

from rl.collectors.weights import chosen_weights, load_weights
from rl.core.errors import ArgumentError, RLError


class CollectorBase(ABC):
    """Iteration over batches, the count of frames, and the end of a collector."""

    total_frames: int
    frames_per_batch: int
    replay_buffer: Any = None
    """Buffer that is extended by every batch, or None."""
    profile_config: Any = None
    """`ProfileConfig` of the recording by `enable_profile`, or None."""
    pre_collect_hook: Any = None
    """Function that is called before every batch, or None; it may be assigned."""
    post_collect_hook: Any = None
    """Function that is called with every batch, after `postproc`, or None; it may be assigned."""
    _weight_updater: Any = None
    _has_whole_trajectories = False
    _frames = 0
    _closed = False
    _interrupted = False
    """Whether Ctrl-C came in the middle of a batch: the next one begins with a reset."""
    _assignable: ClassVar[frozenset[str]] = frozenset(
        {"post_collect_hook", "pre_collect_hook", "total_frames", "weight_updater"}
    )
    """Arguments of the constructor that are followed when they are assigned later."""
    _fixed: frozenset[str] = frozenset()
    """Names that `__setattr__` rejects; none until the constructor has set them."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._fixed:
            kind = type(self).__name__
            raise AttributeError(
                f"{kind}.{name} is set by the constructor, and assigning it would change nothing. Create a new {kind}"
                + ("; update_policy_weights_(policy) gives the policy new weights" if name == "policy" else "")
            )
        super().__setattr__(name, value)

    def _fix_settings(self) -> None:
        """Reject assignments that would be ignored, from the end of the constructor on."""
        self._fixed = self._settings() - self._assignable

    @classmethod
    def _settings(cls) -> frozenset[str]:
        """Names of the constructor's arguments, and of what is made of them.

        Arguments of a user's subclass are not among them: it may keep them as attributes.
        """
        own = [kind for kind in cls.__mro__ if kind.__module__.startswith("rl.collectors.")]
        starts = [inspect.signature(kind.__init__) for kind in own if "__init__" in vars(kind)]
        arguments = [one for start in starts for one in start.parameters.values() if one.kind is not one.VAR_KEYWORD]
        return frozenset(one.name for one in arguments) | {"env"}

    def __iter__(self) -> Iterator[Any]:
        while (batch := self._next_of_iteration()) is not None:
            yield batch[0]

    def _next_of_iteration(self) -> tuple[Any] | None:
        """`_next_result` until `total_frames`; None after them, and if no trajectory ended before the last frame."""
        until = self.total_frames
        return None if 0 <= until <= self._frames else self._next_result(until)

    def _next_result(self, until: int) -> tuple[Any] | None:  # noqa: ARG002  # of subclasses with complete trajectories
        """Return the next batch as it is yielded, maybe None; no tuple if none is complete at `until`."""
        return (self.collect(),)

    @abstractmethod
    def collect(self) -> Any:
        """Collect the next batch, whether or not `total_frames` is reached; None if it goes to a replay buffer."""

    def rollout(self) -> Any:
        """Collect a batch: the same as `collect`."""
        return self.collect()

    def iterator(self) -> Iterator[Any]:
        """Return ``iter(collector)``."""
        return iter(self)

    def next(self) -> Any:
        """Return the next batch of one iteration; None after the last one, and if batches go to a replay buffer."""
        batch = self._next_of_iteration()
        return None if batch is None else batch[0]

    def __len__(self) -> int:
        """Return the number of batches of an iteration from the beginning."""
        if self.total_frames < 0 or self._has_whole_trajectories:
            raise TypeError(
                f"a {type(self).__name__} without total_frames, or with complete trajectories, has no length"
            )
        return ceil(self.total_frames / self.frames_per_batch)

    def __bool__(self) -> bool:
        return True

    @property
    def requested_frames_per_batch(self) -> int:
        """The same as `frames_per_batch`: frames of a batch, rounded up to full steps."""
        return self.frames_per_batch

    # ---- weights

    def update_policy_weights_(  # TorchRL's arguments
        self,
        policy_or_weights: Any = None,
        *,
        weights: Any = None,
        policy: Any = None,
        worker_ids: int | Sequence[int] | None = None,
        model_id: str | None = None,
        weights_dict: Mapping[str, Any] | None = None,
    ) -> None:
        """Use new weights from the next batch on, and count `policy_version`.

        Args:
            policy_or_weights: Policy of the same structure, its ``state_dict()``, or its parameters as a TensorDict.
                None for the policy that the collector was given. With workers, a mapping from their numbers has weights
                of their own for these.
            weights: Weights, the same as `policy_or_weights`.
            policy: Policy, the same as `policy_or_weights`.
            worker_ids: Numbers of the workers that use the weights, until the next ones for all; all if None. Without
                workers, 0 or None.
            model_id: Name of the model, ``"policy"``.
            weights_dict: Weights by the name of the model, ``"policy"``.

        Raises:
            ArgumentError: If there is no policy with parameters, the weights do not fit it, or there is no such worker
                or model. Nothing is changed.
        """
        chosen = chosen_weights(
            policy_or_weights, weights=weights, policy=policy, model_id=model_id, weights_dict=weights_dict
        )
        self._use_weights(chosen["policy"], worker_ids)

    @abstractmethod
    def _use_weights(self, source: Any, worker_ids: int | Sequence[int] | None) -> None:
        """Use the weights of `source`; None for the collector's own policy."""

    def increment_version(self) -> None:
        """Count `policy_version`, as `update_policy_weights_` without weights does."""
        self.update_policy_weights_()

    def get_policy_version(self) -> int:
        """Return the number of weight updates, as `policy_version`."""
        found: Any = self  # an attribute or a property of subclasses
        return found.policy_version

    @property
    def weight_updater(self) -> Any:
        """The `WeightUpdaterBase` that is registered with this collector, or None; assigning one registers it."""
        return self._weight_updater

    @weight_updater.setter
    def weight_updater(self, updater: Any) -> None:
        if updater is not None:
            updater.register_collector(self)
        self._weight_updater = updater

    def set_post_collect_hook(self, hook: Callable[[Any], Any] | None) -> None:
        """Assign `post_collect_hook`."""
        self.post_collect_hook = hook

    # ---- attributes

    @abstractmethod
    def get_distant_attr(self, attr: str) -> Any:
        """Return an attribute of the collector that collects: a dotted path, such as ``"env.batch_size"``."""

    def getattr_policy(self, attr: str) -> Any:
        """Return an attribute of the policy, of the first worker if there are workers.

        Raises:
            AttributeError: If there is none.
        """
        return self._first_attribute(f"policy.{attr}")

    def getattr_env(self, attr: str) -> Any:
        """Return an attribute of the environment, of the first worker if there are workers.

        Raises:
            AttributeError: If there is none.
        """
        return self._first_attribute(f"env.{attr}")

    def getattr_rb(self, attr: str) -> Any:
        """Return an attribute of the replay buffer."""
        return getattr(self.replay_buffer, attr)

    def _first_attribute(self, path: str) -> Any:
        return self.get_distant_attr(path)

    def map_fn(
        self,
        method_name: str,
        list_of_args: Sequence[Sequence[Any]] | None = None,
        list_of_kwargs: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[Any]:
        """Call a method with several sets of arguments, one after the other; with workers, each gets one set.

        Args:
            method_name: Name of the method of the collector.
            list_of_args: Positional arguments of each call; none if None.
            list_of_kwargs: Keyword arguments of each call; none if None.

        Returns:
            Results of the calls.

        Raises:
            ArgumentError: If the two lists, or with workers their number, differ in length.
        """
        calls = self._calls(method_name, list_of_args, list_of_kwargs, None)
        method = attrgetter(method_name)(self)
        return [method(*args, **kwargs) for args, kwargs in calls]

    def _calls(self, name: str, args: Any, kwargs: Any, count: int | None) -> list[tuple[Any, Any]]:
        """Return the arguments of `count` calls, or of as many as there are."""
        known = next((len(given) for given in (args, kwargs) if given is not None), count or 1)
        args = [()] * known if args is None else list(args)
        kwargs = [{}] * known if kwargs is None else list(kwargs)
        if len(args) != len(kwargs) or count not in (None, len(args)):
            raise ArgumentError(
                f"{type(self).__name__}.map_fn({name!r}) got {len(args)} list_of_args and {len(kwargs)} list_of_kwargs,"
                f" expected {'as many of one as of the other' if count is None else f'{count} of each'}"
            )
        return list(zip(args, kwargs, strict=True))

    @property
    def collected_frames(self) -> int:
        """Number of collected frames, over all batches."""
        return self._frames

    def _check_open(self) -> None:
        if self._closed:
            raise RLError("this collector was shut down and its environments closed: create a new one")

    @contextmanager
    def _guard_state(self) -> Generator[bool]:
        """Mark the collector as interrupted if its state is changed in part: by Ctrl-C, not by an error, inside.

        Nothing inside may call a hook of the user: to it the collector would be interrupted.

        Yields:
            Whether the collector was interrupted before.
        """
        before, self._interrupted = self._interrupted, True
        try:
            yield before
        except Exception:
            self._interrupted = before
            raise
        self._interrupted = False

    @abstractmethod
    def shutdown(self, timeout: float | None = None, *, close_env: bool = True, raise_on_error: bool = True) -> None:
        """Close the environments. May be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


class BackgroundCollector(CollectorBase):
    """Base of collectors that call the policy in this process, in the caller's thread or in a background thread."""

    policy: Any
    policy_version = 0
    """Number of calls of `update_policy_weights_`."""

    def __init__(self, replay_buffer: Any, weight_updater: Any) -> None:
        self._background = Background(self._collect_in_background)
        self.replay_buffer = replay_buffer
        self.weight_updater = weight_updater
        self._fix_settings()

    @abstractmethod
    def _collect_in_background(self) -> bool:
        """Collect a batch, and return whether there are more."""

    def _check_usable(self) -> None:
        self._check_open()
        self._background.check_paused()

    def start(self) -> None:
        """Collect into the replay buffer in a background thread, until `pause`, `total_frames` or `shutdown`.

        An exception in the thread ends it, and is raised by the next call. New weights, `reset`, `state_dict` and the
        like take effect between two batches.

        Raises:
            ArgumentError: If there is no replay buffer.
            RLError: After `shutdown`.

        Example:
            >>> from rl.collectors import Collector
            >>> from rl.testing import CountingEnv
            >>> class Buffer(list):
            ...     def extend(self, batch):
            ...         self.append(batch)
            >>> buffer = Buffer()
            >>> collector = Collector(CountingEnv, frames_per_batch=4, total_frames=12, replay_buffer=buffer)
            >>> collector.start()
            >>> while collector.is_running():
            ...     pass  # learn, with buffer.sample()
            >>> collector.async_shutdown()
            >>> [batch.numel() for batch in buffer]
            [4, 4, 4]
        """
        if self.replay_buffer is None:
            raise ArgumentError(f"{type(self).__name__}.start collects into a replay buffer: pass replay_buffer=")
        self._check_open()
        self._background.start()

    def pause(self) -> Pause:
        """Wait until the background thread has completed its batch, and let it collect no further one.

        Returns:
            A context manager that calls `start` at its end, if the thread was running: ``with collector.pause(): ...``.
        """
        running = self._background.running
        self._background.hold()
        return Pause(self.start if running else None)

    @abstractmethod
    def async_shutdown(self, timeout: float | None = None) -> None:
        """End the background thread after its batch, and close the environments."""

    def shutdown(self, timeout: float | None = None, *, close_env: bool = True, raise_on_error: bool = True) -> None:
        """End the background thread and close the environments. May be called twice.

        Args:
            timeout: Seconds to wait for the batch of the background thread; no limit if None.
            close_env: Whether to close the environments, too.
            raise_on_error: Whether an exception of the thread or of the environments is raised.
        """
        self._closed = self._closed or not close_env
        with nullcontext() if raise_on_error else suppress(Exception):
            self.async_shutdown(timeout)

    def is_running(self) -> bool:
        """Whether the background thread collects."""
        return self._background.running

    def _use_weights(self, source: Any, worker_ids: int | Sequence[int] | None) -> None:
        if worker_ids not in (None, 0, [0], (0,)):
            raise ArgumentError(f"update_policy_weights_ got worker_ids={worker_ids}: this collector has one policy, 0")
        with self._background.held():
            self._load(source)

    def _load(self, source: Any) -> None:
        """Load weights, unless they are None or those of the policy itself, and count the version."""
        if source is not None and source is not self.policy:
            load_weights(self.policy, source)
        self.policy_version += 1

    def get_distant_attr(self, attr: str) -> Any:
        """Return an attribute of the collector: a dotted path, such as ``"env.batch_size"``."""
        return attrgetter(attr)(self)


class Background:
    """Thread that collects batch after batch, and stands still between two of them on request.

    An exception in the thread ends it, and is raised by the next call.

    Args:
        collect: Function that collects a batch and returns False if there are no more.
    """

    def __init__(self, collect: Callable[[], bool]) -> None:
        self._collect = collect
        self._changed = Condition()
        self._thread: Thread | None = None
        self._wanted = self._busy = self._ends = False
        self._error: BaseException | None = None

    @property
    def running(self) -> bool:
        """Whether batches are being collected."""
        self.raise_error()
        return self._wanted

    def check_paused(self) -> None:
        """Raise the thread's exception, or `RLError` if another thread calls while batches are being collected."""
        if current_thread() is self._thread:
            return
        self.raise_error()
        if self._wanted:
            raise RLError("this collector collects in the background: call pause() before collect()")

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this thread: a policy, an environment or a hook."""
        return current_thread() is self._thread

    def start(self) -> None:
        """Collect until `hold` or `end`."""
        self.raise_error()
        self._resume()

    def hold(self) -> None:
        """Collect no further batch, and wait until the present one is complete, unless it is the caller's."""
        with self._changed:
            self._wanted = False
            if not self.is_current:
                self._changed.wait_for(lambda: not self._busy)
        self.raise_error()

    @contextmanager
    def held(self) -> Generator[None]:
        """`hold` inside of the context, and continue after it if the thread was running."""
        if self._thread is None or self.is_current:
            self.raise_error()
            yield
            return
        was = self._wanted
        self.hold()
        try:
            yield
        finally:
            if was:
                self._resume()

    def end(self, timeout: float | None = None) -> bool:
        """End the thread after the present batch.

        Returns:
            Whether it ended within `timeout` seconds.
        """
        thread = self._thread
        if thread is None or self.is_current:
            return True
        with self._changed:
            self._ends, self._wanted = True, False
            self._changed.notify_all()
        thread.join(timeout)
        return not thread.is_alive()

    def raise_error(self) -> None:
        """Raise the exception that ended the thread, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _resume(self) -> None:
        with self._changed:
            self._wanted, self._ends = True, False
            if self._thread is None:
                self._thread = Thread(target=self._run, name="collector", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _run(self) -> None:
        more = True
        while more:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted or self._ends)
                if self._ends:
                    self._thread = None
                    return
                self._busy = True
            try:
                more = self._collect()
            except BaseException as error:  # noqa: BLE001  raised by the next call
                self._error, more = error, False
            with self._changed:
                self._busy = False
                if not more:
                    self._thread, self._wanted = None, False
                self._changed.notify_all()


class Pause:
    """Result of ``pause()``: as a context manager it starts the collector again at its end."""

    def __init__(self, start: Callable[[], None] | None) -> None:
        self._start = start

    def __enter__(self) -> None:
        """Nothing: the collector pauses already."""

    def __exit__(self, *_: object) -> None:
        if self._start is not None:
            self._start()
