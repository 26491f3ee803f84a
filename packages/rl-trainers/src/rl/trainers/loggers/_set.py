"""All loggers of a run as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rl.core.interfaces import Logger
from rl.trainers._config.named import find

__all__ = ["LoggerSet"]


class LoggerSet:
    """Hands each row to several loggers.

    Args:
        names: logger components, for example csv, or ``module:attribute``. Nothing is written before `open`.

    Raises:
        UnknownComponentError: if there is no such logger.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._kinds = [find("logger", name) for name in names]
        self._loggers: list[Logger] = []

    def open(self, folder: Path, *, resume_step: int | None = None) -> None:
        """Begin to write.

        Args:
            folder: the run folder.
            resume_step: frames from which a resumed run continues; None for a new run.
        """
        self._loggers = [kind(folder, resume_step=resume_step) for kind in self._kinds]

    def log_scalars(self, values: Mapping[str, float], step: int) -> None:
        """Record values at `step` everywhere."""
        for logger in self._loggers:
            logger.log_scalars(values, step)

    def close(self) -> None:
        """Close all. May be called twice."""
        for logger in self._loggers:
            logger.close()
