"""SIGINT and SIGTERM as a flag that the training loop reads."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

__all__ = ["SavedInterrupt", "StopSignals"]


class SavedInterrupt(KeyboardInterrupt):
    """Ctrl-C ended a run that has a checkpoint to resume from."""


class StopSignals:
    """While active, the first SIGINT or SIGTERM sets a flag; a second SIGINT interrupts at once.

    Outside the main thread, where Python allows no handlers, it only carries the flag.

    Example:
        >>> with StopSignals() as signals:
        ...     signals.stop
        False
    """

    def __init__(self) -> None:
        self.stop = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the form of a handler
        if self.stop:
            raise KeyboardInterrupt
        self.stop = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()
