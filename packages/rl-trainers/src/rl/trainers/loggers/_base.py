"""Base of loggers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rl.core.errors import RLError

if TYPE_CHECKING:
    from tensordict import TensorDictBase
    from torch import Tensor

__all__ = ["Logger"]


class Logger(ABC):
    """Base of loggers, for recipes and for loops of one's own.

    A subclass implements `log_scalar`, and what else it can record. Recipes call `log_scalars` with each row of metrics
    and `close`, the members of the protocol `rl.core.interfaces.Logger`.

    Args:
        folder: Folder of the run.
        resume_step: Frames from which a run continues; None for a new run.

    Example:
        >>> import torch
        >>> class Printed(Logger):
        ...     def log_scalar(self, name, value, step=None):
        ...         print(step, name, value)
        >>> logger = Printed(Path("."))
        >>> logger.log_scalars({"train/loss_actor": 0.5, "eval/return_mean": float("nan")}, step=10)
        10 train/loss_actor 0.5
        >>> logger.log_metrics({"kl": torch.tensor(0.25)}, step=20)
        20 kl 0.25
        {'kl': 0.25}
    """

    def __init__(self, folder: str | Path, *, resume_step: int | None = None) -> None:
        self.folder, self.resume_step = Path(folder), resume_step

    @abstractmethod
    def log_scalar(self, name: str, value: float, step: int | None = None) -> None:
        """Record one number.

        Args:
            name: Name of the metric.
            value: Number to record.
            step: Frames so far.
        """

    def log_scalars(self, values: Mapping[str, float], step: int) -> None:
        """Record a row of numbers; NaN is left out."""
        for name, value in values.items():
            if not math.isnan(value):
                self.log_scalar(name, value, step)

    def log_metrics(
        self, metrics: Mapping[str, Any] | TensorDictBase, step: int | None = None, *, keys_sep: str = "/"
    ) -> dict[str, float]:
        """Record numbers and scalar tensors, and return them as numbers.

        Args:
            metrics: Numbers by name, or a TensorDict.
            step: Frames so far.
            keys_sep: Separator of the parts of nested keys.
        """
        flatten = getattr(metrics, "flatten_keys", None)  # of a TensorDict, without importing it
        flat: Any = metrics if flatten is None else flatten(keys_sep)
        numbers = {str(name): float(value) for name, value in flat.items()}
        for name, value in numbers.items():
            self.log_scalar(name, value, step)
        return numbers

    def log_str(self, name: str, value: str, step: int | None = None) -> None:  # noqa: ARG002 - of the interface
        """Record a text.

        Raises:
            RLError: if the logger records none.
        """
        self._cannot("texts", "log_str")

    def log_hparams(self, cfg: Mapping[str, Any]) -> None:  # noqa: ARG002 - of the interface
        """Record the settings of a run.

        Raises:
            RLError: if the logger records none.
        """
        self._cannot("settings", "log_hparams")

    def log_video(self, name: str, video: Tensor, step: int | None = None, **kwargs: Any) -> None:  # noqa: ARG002 - of the interface
        """Record pictures, uint8 ``[T, C, H, W]`` or ``[N, T, C, H, W]``; `kwargs` has ``fps``, pictures per second.

        Raises:
            RLError: if the logger records none.
        """
        self._cannot("videos", "log_video")

    def close(self) -> None:  # noqa: B027 - nothing to flush is usual
        """Flush. May be called twice."""

    def _cannot(self, what: str, method: str) -> NoReturn:
        raise RLError(f"{type(self).__name__} records no {what}: override {method}, or use another logger beside it")
