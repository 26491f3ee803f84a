"""Collection in a background thread: `start`, `pause`, `is_running`."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Condition, Thread, current_thread

__all__ = ["Background", "Pause"]


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
