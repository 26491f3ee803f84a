"""Profile of the time of a collector."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

from torch.profiler import record_function

from rl.core.profiling import profiled

__all__ = ["Clock", "Ranges"]


class Clock:
    """Sum of the seconds spent in named calls.

    On a CUDA device these are the seconds of the launches: nothing is synchronized.

    Example:
        >>> clock = Clock()
        >>> clock.around("env", lambda x: x + 1)(1)
        2
        >>> list(clock.seconds)
        ['env']
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function`, timed under `name`."""
        seconds = self.seconds
        seconds.setdefault(name, 0.0)

        def timed(*arguments: Any) -> Any:
            start = perf_counter()
            with profiled(name):
                result = function(*arguments)
            seconds[name] += perf_counter() - start
            return result

        return timed


class Ranges:
    """Named ranges of a trace around calls."""

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` in a range `name`."""

        def ranged(*arguments: Any) -> Any:
            with record_function(name):
                return function(*arguments)

        return ranged
