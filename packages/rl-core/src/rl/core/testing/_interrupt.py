"""Ctrl-C at a chosen line, for tests of what has to stay whole."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from rl.core.recurrent import keep_modes

__all__ = ["interrupt_at"]


def interrupt_at(call: Callable[[], object], line: int, sources: Iterable[str]) -> bool:
    """Call a function with Ctrl-C at one line of some sources: a test that counts up tries each of them.

    Args:
        call: Function that is interrupted, in the main thread.
        line: Number of the line, counted as lines are executed, from 1.
        sources: Parts of paths; lines of other files are not counted.

    Returns:
        Whether the line was reached.

    Example:
        >>> from rl.core import arguments
        >>> interrupt_at(lambda: arguments.as_integer(3, "example", "count", least=1), 1, ["core/arguments/"])
        True
        >>> interrupt_at(lambda: arguments.as_integer(3, "example", "count", least=1), 999, ["core/arguments/"])
        False
    """
    left, parts = line, tuple(sources)

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if not any(part in frame.f_code.co_filename for part in parts):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                signal.raise_signal(signal.SIGINT)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with keep_modes():
            call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return left <= 0
