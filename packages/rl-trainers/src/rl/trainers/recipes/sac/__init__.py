"""Soft actor-critic."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.trainers.recipes.sac._config import SACConfig
    from rl.trainers.recipes.sac._train import train_sac

__all__ = ["SACConfig", "train_sac"]

__getattr__, __dir__ = lazy_exports(__name__)
