"""Soft actor-critic with batch renormalization and without target networks."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.trainers.recipes.crossq._config import CrossQConfig
    from rl.trainers.recipes.crossq._train import train_crossq

__all__ = ["CrossQConfig", "train_crossq"]

__getattr__, __dir__ = lazy_exports(__name__)
