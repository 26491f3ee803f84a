"""Rainbow: distributional, double, dueling, multi-step deep Q-learning with priorities and noisy networks."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.trainers.recipes.rainbow._config import RainbowConfig
    from rl.trainers.recipes.rainbow._train import train_rainbow

__all__ = ["RainbowConfig", "train_rainbow"]

__getattr__, __dir__ = lazy_exports(__name__)
