"""Implicit Q-learning."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.trainers.recipes.iql._config import IQLConfig
    from rl.trainers.recipes.iql._train import train_iql

__all__ = ["IQLConfig", "train_iql"]

__getattr__, __dir__ = lazy_exports(__name__)
