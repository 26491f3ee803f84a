"""Training recipes, run folders, and the commands ``rl train`` and ``rl eval``."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.trainers.__about__ import __version__
    from rl.trainers._checkpoint import load_checkpoint, save_checkpoint
    from rl.trainers._dqn import train_dqn
    from rl.trainers._dqn_config import DQNConfig
    from rl.trainers._envs import make_env
    from rl.trainers._evaluation import Evaluator
    from rl.trainers._loading import TrainedRun, evaluate, load_policy, load_run
    from rl.trainers._ppo import train_ppo
    from rl.trainers._ppo_config import PPOConfig
    from rl.trainers._recipe import Recipe
    from rl.trainers._run import Run, TrainResult
    from rl.trainers._run_config import RunConfig

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
        "rl.trainers._checkpoint": ["load_checkpoint", "save_checkpoint"],
        "rl.trainers._dqn": ["train_dqn"],
        "rl.trainers._dqn_config": ["DQNConfig"],
        "rl.trainers._envs": ["make_env"],
        "rl.trainers._evaluation": ["Evaluator"],
        "rl.trainers._loading": ["TrainedRun", "evaluate", "load_policy", "load_run"],
        "rl.trainers._ppo": ["train_ppo"],
        "rl.trainers._ppo_config": ["PPOConfig"],
        "rl.trainers._recipe": ["Recipe"],
        "rl.trainers._run": ["Run", "TrainResult"],
        "rl.trainers._run_config": ["RunConfig"],
    },
)
