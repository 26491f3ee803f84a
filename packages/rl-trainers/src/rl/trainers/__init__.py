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
    from rl.trainers.recipes.a2c._config import A2CConfig
    from rl.trainers.recipes.a2c._train import train_a2c
    from rl.trainers.recipes.c51._config import C51Config
    from rl.trainers.recipes.c51._train import train_c51
    from rl.trainers.recipes.crossq._config import CrossQConfig
    from rl.trainers.recipes.crossq._train import train_crossq
    from rl.trainers.recipes.ddpg._config import DDPGConfig
    from rl.trainers.recipes.ddpg._train import train_ddpg
    from rl.trainers.recipes.discrete_sac._config import DiscreteSACConfig
    from rl.trainers.recipes.discrete_sac._train import train_discrete_sac
    from rl.trainers.recipes.dqn._config import DQNConfig
    from rl.trainers.recipes.dqn._train import train_dqn
    from rl.trainers.recipes.impala._config import ImpalaConfig
    from rl.trainers.recipes.impala._train import train_impala
    from rl.trainers.recipes.ppo._config import PPOConfig
    from rl.trainers.recipes.ppo._train import train_ppo
    from rl.trainers.recipes.ppo_rnd._config import PPORNDConfig
    from rl.trainers.recipes.ppo_rnd._train import train_ppo_rnd
    from rl.trainers.recipes.qrdqn._config import QRDQNConfig
    from rl.trainers.recipes.qrdqn._train import train_qrdqn
    from rl.trainers.recipes.rainbow._config import RainbowConfig
    from rl.trainers.recipes.rainbow._train import train_rainbow
    from rl.trainers.recipes.redq._config import REDQConfig
    from rl.trainers.recipes.redq._train import train_redq
    from rl.trainers.recipes.reinforce._config import ReinforceConfig
    from rl.trainers.recipes.reinforce._train import train_reinforce
    from rl.trainers.recipes.sac._config import SACConfig
    from rl.trainers.recipes.sac._train import train_sac
    from rl.trainers.recipes.td3._config import TD3Config
    from rl.trainers.recipes.td3._train import train_td3
    from rl.trainers.recipes.tqc._config import TQCConfig
    from rl.trainers.recipes.tqc._train import train_tqc

__all__ = [
    "A2CConfig",
    "C51Config",
    "CrossQConfig",
    "DDPGConfig",
    "DQNConfig",
    "DiscreteSACConfig",
    "Evaluator",
    "ImpalaConfig",
    "PPOConfig",
    "PPORNDConfig",
    "QRDQNConfig",
    "REDQConfig",
    "RainbowConfig",
    "Recipe",
    "ReinforceConfig",
    "Run",
    "RunConfig",
    "SACConfig",
    "TD3Config",
    "TQCConfig",
    "TrainResult",
    "TrainedRun",
    "__version__",
    "evaluate",
    "load_checkpoint",
    "load_policy",
    "load_run",
    "make_env",
    "save_checkpoint",
    "train_a2c",
    "train_c51",
    "train_crossq",
    "train_ddpg",
    "train_discrete_sac",
    "train_dqn",
    "train_impala",
    "train_ppo",
    "train_ppo_rnd",
    "train_qrdqn",
    "train_rainbow",
    "train_redq",
    "train_reinforce",
    "train_sac",
    "train_td3",
    "train_tqc",
]

__getattr__, __dir__ = lazy_exports(__name__)
