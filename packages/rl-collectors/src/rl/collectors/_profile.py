"""Profile of the time of a collector."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

__all__ = ["Clock"]


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
            result = function(*arguments)
            seconds[name] += perf_counter() - start
            return result

        return timed
