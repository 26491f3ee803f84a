"""Conservative Q-learning."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.trainers.recipes.cql._config import CQLConfig
    from rl.trainers.recipes.cql._train import train_cql

__all__ = ["CQLConfig", "train_cql"]

__getattr__, __dir__ = lazy_exports(__name__)
