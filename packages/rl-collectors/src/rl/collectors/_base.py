"""Base of all collectors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, Self

from rl.core.errors import RLError

__all__ = ["CollectorBase"]


class CollectorBase(ABC):
    """Iteration over batches, the count of frames, and the end of a collector."""

    total_frames: int
    frames_per_batch: int
    _frames = 0
    _closed = False
    _torn = False
    """Whether Ctrl-C came in the middle of a batch: the next one begins with a reset."""

    def __iter__(self) -> Iterator[Any]:
        while self.total_frames < 0 or self._frames < self.total_frames:
            yield self.collect()

    @abstractmethod
    def collect(self) -> Any:
        """Collect the next batch, whether or not `total_frames` is reached; None if it goes to a replay buffer."""

    def rollout(self) -> Any:
        """The same as `collect`."""
        return self.collect()

    @property
    def collected_frames(self) -> int:
        """Number of collected frames, over all batches."""
        return self._frames

    def _check_open(self) -> None:
        if self._closed:
            raise RLError("this collector was shut down and its environments closed: make a new one")

    @contextmanager
    def _guard_state(self) -> Generator[None]:
        """Note that the collector is torn if its state is changed in part: by Ctrl-C, not by an error, inside."""
        self._torn = True
        try:
            yield
        except Exception:
            self._torn = False
            raise
        self._torn = False

    @abstractmethod
    def shutdown(self) -> None:
        """Close the environments. May be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
