"""Twin delayed deep deterministic policy gradient."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.trainers.recipes.td3._config import TD3Config
    from rl.trainers.recipes.td3._train import train_td3

__all__ = ["TD3Config", "train_td3"]

__getattr__, __dir__ = lazy_exports(__name__)
