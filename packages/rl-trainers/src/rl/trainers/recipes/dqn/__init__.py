"""Deep Q-learning."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.trainers.recipes.dqn._config import DQNConfig
    from rl.trainers.recipes.dqn._train import train_dqn

__all__ = ["DQNConfig", "train_dqn"]

__getattr__, __dir__ = lazy_exports(__name__)
