"""Training recipes, run folders, and the commands ``rl train``, ``rl eval`` and ``rl benchmark``."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.trainers.__about__ import __version__
    from rl.trainers._build.envs import make_env
    from rl.trainers._config.config import RunConfig
    from rl.trainers._config.recipe import Recipe
    from rl.trainers._evaluate.evaluator import Evaluator
    from rl.trainers._evaluate.loading import TrainedRun, evaluate, load_policy, load_run
    from rl.trainers._run.run import Run, TrainResult
    from rl.trainers._storage.checkpoint import load_checkpoint, save_checkpoint
    from rl.trainers.recipes.dqn._config import DQNConfig
    from rl.trainers.recipes.dqn._train import train_dqn
    from rl.trainers.recipes.ppo._config import PPOConfig
    from rl.trainers.recipes.ppo._train import train_ppo

__all__ = [
    "DQNConfig",
    "Evaluator",
    "PPOConfig",
    "Recipe",
    "Run",
    "RunConfig",
    "TrainResult",
    "TrainedRun",
    "__version__",
    "evaluate",
    "load_checkpoint",
    "load_policy",
    "load_run",
    "make_env",
    "save_checkpoint",
    "train_dqn",
    "train_ppo",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "rl.trainers.__about__": ["__version__"],
        "rl.trainers._storage.checkpoint": ["load_checkpoint", "save_checkpoint"],
        "rl.trainers.recipes.dqn._train": ["train_dqn"],
        "rl.trainers.recipes.dqn._config": ["DQNConfig"],
        "rl.trainers._build.envs": ["make_env"],
        "rl.trainers._evaluate.evaluator": ["Evaluator"],
        "rl.trainers._evaluate.loading": ["TrainedRun", "evaluate", "load_policy", "load_run"],
        "rl.trainers.recipes.ppo._train": ["train_ppo"],
        "rl.trainers.recipes.ppo._config": ["PPOConfig"],
        "rl.trainers._config.recipe": ["Recipe"],
        "rl.trainers._run.run": ["Run", "TrainResult"],
        "rl.trainers._config.config": ["RunConfig"],
    },
)
