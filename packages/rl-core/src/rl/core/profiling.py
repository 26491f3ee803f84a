"""Named ranges in traces of `torch.profiler`, and `timeit`: where the time of a program goes."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from typing import Any, ClassVar, Self, TypeVar

from rl.core.settings import settings

__all__ = ["profiled", "profiling_enabled", "set_profiling_enabled", "timeit"]

_F = TypeVar("_F", bound=Callable[..., Any])


class _Switch:
    """Whether ranges are recorded: None until the environment variable is read."""

    enabled: bool | None = None


def set_profiling_enabled(enabled: bool = True) -> None:  # noqa: FBT001, FBT002  # TorchRL's signature
    """Record collectors, replay buffers, losses and estimators as named ranges of `torch.profiler`, in this process.

    The ranges are ``collect``, ``policy`` and ``env``, ``replay.sample`` and ``replay.extend``, and the class names of
    losses and estimators. Off by default; the environment variable ``RL_PROFILING=1`` turns them on, in worker
    processes too.

    Args:
        enabled: Whether to record them.

    Example:
        >>> set_profiling_enabled(True)
        >>> profiling_enabled()
        True
        >>> set_profiling_enabled(False)
    """
    _Switch.enabled = enabled


def profiling_enabled() -> bool:
    """Whether named ranges are recorded; see `set_profiling_enabled`."""
    if _Switch.enabled is None:
        _Switch.enabled = settings().profiling
    return _Switch.enabled


def profiled(name: str) -> AbstractContextManager[Any]:
    """Return a context manager that is a named range of the trace, if `set_profiling_enabled` was called.

    Args:
        name: Name in the trace.

    Example:
        >>> with profiled("simulate"):
        ...     x = 1
    """
    if not profiling_enabled():
        return nullcontext()
    from torch.profiler import record_function

    return record_function(name)


class timeit:  # noqa: N801  # TorchRL's name
    """Sum of the wall-clock time of named pieces of code, as a context manager or a decorator.

    Calls on a CUDA device are not waited for: the time of a kernel is that of its launch.

    Args:
        name: Name of the piece of code; all pieces of a name are added up, in the entire process.

    Example:
        >>> timeit.erase()
        >>> for _ in range(3):
        ...     with timeit("rollout"):
        ...         x = sum(range(100))
        >>> timeit.todict(percall=False).keys() == {"rollout"}, timeit.count("rollout")
        (True, 3)
        >>> @timeit("train")
        ... def train():
        ...     return 1
        >>> train()
        1
    """

    _seconds: ClassVar[dict[str, float]] = {}
    _counts: ClassVar[Counter[str]] = Counter()
    _printed: ClassVar[Counter[str]] = Counter()

    def __init__(self, name: str) -> None:
        self.name = name
        self._begun: list[float] = []

    def __enter__(self) -> Self:
        self._begun.append(perf_counter())
        return self

    def __exit__(self, *_: object) -> None:
        self._seconds[self.name] = self._seconds.get(self.name, 0.0) + self.elapsed()
        self._counts[self.name] += 1
        self._begun.pop()

    def __call__(self, function: _F) -> _F:
        """Time each call of a function."""

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with timeit(self.name):
                return function(*args, **kwargs)

        return timed  # pyright: ignore[reportReturnType]  # of the same signature

    def start(self) -> Self:
        """Enter without a ``with`` block; `stop` ends it."""
        return self.__enter__()

    def stop(self) -> None:
        """Leave what `start` has entered."""
        self.__exit__()

    def elapsed(self) -> float:
        """Seconds since it was entered."""
        return perf_counter() - self._begun[-1]

    @classmethod
    def count(cls, name: str) -> int:
        """How often a piece has run."""
        return cls._counts[name]

    @classmethod
    def todict(cls, percall: bool = True, prefix: str | None = None) -> dict[str, float]:  # noqa: FBT001, FBT002
        """Return seconds by name.

        Args:
            percall: Mean of a run, instead of the sum.
            prefix: Prefix of each name, followed by a slash.
        """
        front = "" if prefix is None else f"{prefix}/"
        return {
            f"{front}{name}": seconds / cls._counts[name] if percall else seconds
            for name, seconds in cls._seconds.items()
        }

    @classmethod
    def print(cls, prefix: str | None = None) -> None:
        """Print a table, the largest sum first: name, runs, seconds of a run, sum in seconds, percentage."""
        total = sum(cls._seconds.values()) or 1.0
        for name, seconds in sorted(cls._seconds.items(), key=lambda item: -item[1]):
            count = cls._counts[name]
            print(  # noqa: T201  # printing is its purpose
                f"{'' if prefix is None else prefix}{name:<32} {count:>8} x {seconds / count:.3e} s = {seconds:9.3f} s"
                f" {seconds / total:7.1%}"
            )

    @classmethod
    def printevery(cls, num_prints: int, total_count: int, *, erase: bool = False, prefix: str | None = None) -> None:
        """Print in the first of every ``total_count / num_prints`` calls.

        Args:
            num_prints: Tables in `total_count` calls.
            total_count: Number of calls of this method.
            erase: Whether to erase the times after a table.
            prefix: Argument of `print`.
        """
        every = max(1, total_count // num_prints)
        cls._printed["calls"] += 1
        if (cls._printed["calls"] - 1) % every == 0:
            cls.print(prefix)
            if erase:
                cls.erase()

    @classmethod
    def erase(cls) -> None:
        """Forget all times."""
        cls._seconds.clear()
        cls._counts.clear()

    reset = erase
