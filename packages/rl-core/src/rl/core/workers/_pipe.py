"""File descriptors that a process shares with a worker which it starts."""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing.reduction import DupFd
from typing import Any

__all__ = ["Descriptor", "one_way"]


class Descriptor:
    """A file descriptor that can be an argument of a process, with each start method.

    Args:
        number: the open descriptor.
    """

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _received, (DupFd(self.number),)

    def close(self) -> None:
        """Close it. May be called twice."""
        if self.number >= 0:
            os.close(self.number)
            self.number = -1


def _received(given: Any) -> Descriptor:
    return Descriptor(given.detach())


def one_way() -> tuple[Descriptor, Descriptor]:
    """Return the read end and the write end of a new pipe."""
    read, write = os.pipe()
    return Descriptor(read), Descriptor(write)
