"""Proximal policy optimization."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.trainers.recipes.ppo._config import PPOConfig
    from rl.trainers.recipes.ppo._train import train_ppo

__all__ = ["PPOConfig", "train_ppo"]

__getattr__, __dir__ = lazy_exports(__name__)
