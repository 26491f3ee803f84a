"""Decision transformer."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.trainers.recipes.dt._config import DTConfig
    from rl.trainers.recipes.dt._train import train_dt

__all__ = ["DTConfig", "train_dt"]

__getattr__, __dir__ = lazy_exports(__name__)
