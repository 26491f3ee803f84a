"""Collectors that can collect in a background thread: `start`, `pause`, `is_running`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from operator import attrgetter
from threading import Condition, Thread, current_thread
from typing import Any

from rl.collectors._base import CollectorBase
from rl.collectors.weights._load import load_weights
from rl.core.errors import RLError, SpecError

__all__ = ["Background", "BackgroundCollector", "Pause"]


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
        if not self._background.is_current and self._background.running:
            raise RLError("this collector collects in the background: call pause() before collect()")

    def start(self) -> None:
        """Collect into the replay buffer in a background thread, until `pause`, `total_frames` or `shutdown`.

        An exception in the thread ends it, and is raised by the next call. New weights, `reset`, `state_dict` and the
        like take effect between two batches.

        Raises:
            SpecError: if there is no replay buffer.
            RLError: after `shutdown`.

        Example:
            >>> from rl.collectors import Collector
            >>> from rl.core.testing import CountingEnv
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
            raise SpecError(f"{type(self).__name__}.start collects into a replay buffer: pass replay_buffer=")
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
            raise SpecError(f"update_policy_weights_ got worker_ids={worker_ids}: this collector has one policy, 0")
        with self._background.held():
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
        collect: collects a batch; returns False if there are no more.
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
