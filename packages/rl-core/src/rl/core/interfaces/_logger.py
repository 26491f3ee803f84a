"""Loggers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

__all__ = ["Logger"]


class Logger(Protocol):
    """Record of the metrics of a run.

    The target of a component of kind ``logger`` is called as ``target(folder, resume_step=None)`` with the folder of
    the run as a `pathlib.Path`. `resume_step` is an int where a run continues: the frames from which it does, so that
    rows of later steps, which an earlier start may have written, are dropped.
    """

    def log_scalars(self, values: Mapping[str, float], step: int) -> None:
        """Record values at `step` (frames)."""
        ...

    def close(self) -> None:
        """Flush. May be called twice."""
        ...
