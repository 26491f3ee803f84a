"""Proximal policy optimization of groups of agents."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.trainers.recipes.mappo._config import MAPPOConfig
    from rl.trainers.recipes.mappo._train import train_mappo

__all__ = ["MAPPOConfig", "train_mappo"]

__getattr__, __dir__ = lazy_exports(__name__)
