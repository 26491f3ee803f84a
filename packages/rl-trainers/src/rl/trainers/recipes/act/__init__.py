"""Action chunking with transformers."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.trainers.recipes.act._config import ACTConfig
    from rl.trainers.recipes.act._train import train_act

__all__ = ["ACTConfig", "train_act"]

__getattr__, __dir__ = lazy_exports(__name__)
