"""Behaviour cloning."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.trainers.recipes.bc._config import BCConfig
    from rl.trainers.recipes.bc._train import train_bc

__all__ = ["BCConfig", "train_bc"]

__getattr__, __dir__ = lazy_exports(__name__)
