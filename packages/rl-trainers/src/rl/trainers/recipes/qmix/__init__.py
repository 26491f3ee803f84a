"""QMIX."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.trainers.recipes.qmix._config import QMIXConfig
    from rl.trainers.recipes.qmix._train import train_qmix

__all__ = ["QMIXConfig", "train_qmix"]

__getattr__, __dir__ = lazy_exports(__name__)
