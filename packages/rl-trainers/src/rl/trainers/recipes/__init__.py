"""Training recipes, one folder an algorithm."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.trainers._config.recipe import Recipe
    from rl.trainers.recipes.dqn._config import DQNConfig
    from rl.trainers.recipes.dqn._train import train_dqn
    from rl.trainers.recipes.ppo._config import PPOConfig
    from rl.trainers.recipes.ppo._train import train_ppo

__all__ = ["DQNConfig", "PPOConfig", "Recipe", "train_dqn", "train_ppo"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "rl.trainers._config.recipe": ["Recipe"],
        "rl.trainers.recipes.dqn._config": ["DQNConfig"],
        "rl.trainers.recipes.dqn._train": ["train_dqn"],
        "rl.trainers.recipes.ppo._config": ["PPOConfig"],
        "rl.trainers.recipes.ppo._train": ["train_ppo"],
    },
)
