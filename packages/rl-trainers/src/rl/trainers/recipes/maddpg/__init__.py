"""Multi-agent deep deterministic policy gradient."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.trainers.recipes.maddpg._config import MADDPGConfig
    from rl.trainers.recipes.maddpg._train import train_maddpg

__all__ = ["MADDPGConfig", "train_maddpg"]

__getattr__, __dir__ = lazy_exports(__name__)
