"""Pieces of code that Ctrl-C does not divide."""

from __future__ import annotations

import signal
import threading
from importlib import import_module
from typing import Any

__all__ = ["Undivided"]

# `signal.signal` makes enums of its arguments, which takes 3 microseconds instead of 0.3.
_signal: Any = import_module("_signal")


class Undivided:
    """Context in which Ctrl-C waits until the end, so that what is sent and what is noted about it agree.

    It is short and does not wait for other processes. If it waits nevertheless, a second Ctrl-C ends it.
    """

    __slots__ = ("_came", "_handler")

    def __enter__(self) -> None:
        self._handler: Any = None
        self._came: tuple[Any, Any] | None = None
        if threading.get_ident() != threading.main_thread().ident:
            return  # no other thread is interrupted
        handler = _signal.getsignal(signal.SIGINT)
        if callable(handler):
            self._handler = handler
            _signal.signal(signal.SIGINT, self._note)

    def __exit__(self, *_: object) -> None:
        if self._handler is None:
            return
        _signal.signal(signal.SIGINT, self._handler)
        if self._came is not None:
            self._handler(*self._came)

    def _note(self, number: Any, frame: Any) -> None:
        if self._came is not None:
            self._handler(number, frame)
        self._came = (number, frame)
