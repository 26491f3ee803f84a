"""Value decomposition."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.trainers.recipes.vdn._config import VDNConfig
    from rl.trainers.recipes.vdn._train import train_vdn

__all__ = ["VDNConfig", "train_vdn"]

__getattr__, __dir__ = lazy_exports(__name__)
