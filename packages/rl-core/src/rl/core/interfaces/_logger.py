"""Loggers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

__all__ = ["Logger"]


class Logger(Protocol):
    """Where figures go."""

    def log_scalars(self, values: Mapping[str, float], step: int) -> None:
        """Record values at `step` (frames)."""
        ...

    def close(self) -> None:
        """Flush. May be called twice."""
        ...
