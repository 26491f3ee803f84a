"""Truncated quantile critics."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.trainers.recipes.tqc._config import TQCConfig
    from rl.trainers.recipes.tqc._train import train_tqc

__all__ = ["TQCConfig", "train_tqc"]

__getattr__, __dir__ = lazy_exports(__name__)
