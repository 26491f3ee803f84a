"""TD3 with behaviour cloning."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.trainers.recipes.td3_bc._config import TD3BCConfig
    from rl.trainers.recipes.td3_bc._train import train_td3_bc

__all__ = ["TD3BCConfig", "train_td3_bc"]

__getattr__, __dir__ = lazy_exports(__name__)
