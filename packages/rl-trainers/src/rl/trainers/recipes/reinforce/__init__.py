"""REINFORCE."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.trainers.recipes.reinforce._config import ReinforceConfig
    from rl.trainers.recipes.reinforce._train import train_reinforce

__all__ = ["ReinforceConfig", "train_reinforce"]

__getattr__, __dir__ = lazy_exports(__name__)
