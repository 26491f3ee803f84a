"""Independent Q-learning of several agents."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.trainers.recipes.iql_ma._config import IQLMAConfig
    from rl.trainers.recipes.iql_ma._train import train_iql_ma

__all__ = ["IQLMAConfig", "train_iql_ma"]

__getattr__, __dir__ = lazy_exports(__name__)
