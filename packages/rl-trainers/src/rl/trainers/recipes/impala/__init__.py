"""Importance-weighted actor-learner."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.trainers.recipes.impala._config import ImpalaConfig
    from rl.trainers.recipes.impala._train import train_impala

__all__ = ["ImpalaConfig", "train_impala"]

__getattr__, __dir__ = lazy_exports(__name__)
