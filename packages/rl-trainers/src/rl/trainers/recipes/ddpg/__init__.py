"""Deep deterministic policy gradient."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.trainers.recipes.ddpg._config import DDPGConfig
    from rl.trainers.recipes.ddpg._train import train_ddpg

__all__ = ["DDPGConfig", "train_ddpg"]

__getattr__, __dir__ = lazy_exports(__name__)
