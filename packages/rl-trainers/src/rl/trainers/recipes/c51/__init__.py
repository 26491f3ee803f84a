"""Distributional deep Q-learning with fixed atoms."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.trainers.recipes.c51._config import C51Config
    from rl.trainers.recipes.c51._train import train_c51

__all__ = ["C51Config", "train_c51"]

__getattr__, __dir__ = lazy_exports(__name__)
