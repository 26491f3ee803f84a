"""SIGINT, SIGTERM and SIGHUP as a flag that the training loop reads."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


class SavedInterrupt(KeyboardInterrupt):
    """Ctrl-C ended a run that has a checkpoint to resume from."""


class StopSignals:
    """While active, the first SIGINT, SIGTERM or SIGHUP sets a flag; a second one interrupts at once.

    A SIGHUP says that the terminal was closed: what is written to it afterwards is dropped. Where SIGHUP is ignored, as
    below ``nohup``, it stays so. Outside the main thread, where Python allows no handlers, it only carries the flag.

    Example:
        >>> with StopSignals() as signals:
        ...     signals.stop
        False
    """

    def __init__(self) -> None:
        self.stop = False
        self._previous: dict[int, Any] = {}
        self._terminals: list[int] = []

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            hangup = [signal.SIGHUP] if hasattr(signal, "SIGHUP") else []
            if hangup and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
                hangup = []
            for number in (signal.SIGINT, signal.SIGTERM, *hangup):
                self._previous[number] = signal.signal(number, self._handle)
            self._terminals = [fd for fd in (1, 2) if os.isatty(fd)]
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the form of a handler
        if number == getattr(signal, "SIGHUP", None):
            self._close_terminals()
        if self.stop:
            raise KeyboardInterrupt
        self.stop = True

    def _close_terminals(self) -> None:
        """Send what is written to the terminals to nowhere: writing to one that was closed raises."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for terminal in self._terminals:
            os.dup2(nowhere, terminal)
        os.close(nowhere)
        self._terminals = []

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()
