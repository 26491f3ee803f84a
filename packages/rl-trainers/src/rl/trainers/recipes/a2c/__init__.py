"""Advantage actor-critic."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.trainers.recipes.a2c._config import A2CConfig
    from rl.trainers.recipes.a2c._train import train_a2c

__all__ = ["A2CConfig", "train_a2c"]

__getattr__, __dir__ = lazy_exports(__name__)
