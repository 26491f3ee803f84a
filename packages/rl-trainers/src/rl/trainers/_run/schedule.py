"""`Every`: schedule of actions every `n` frames."""

from __future__ import annotations

__all__ = ["Every"]


class Every:
    """Due once in each `interval` of frames.

    Args:
        interval: frames.

    Example:
        >>> every = Every(100)
        >>> [every.due(frames) for frames in (60, 120, 180, 240)]
        [False, True, False, True]
    """

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self.next = interval

    def due(self, frames: int, *, last: bool = False) -> bool:
        """Whether it is time, at `frames`; always at the `last` iteration."""
        if frames < self.next and not last:
            return False
        if frames >= self.next:
            self.next = (frames // self.interval + 1) * self.interval
        return True
