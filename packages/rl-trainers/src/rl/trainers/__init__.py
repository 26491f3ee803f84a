"""Training recipes, run folders, and the commands ``rl train``, ``rl eval`` and ``rl benchmark``."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.trainers.__about__ import __version__
    from rl.trainers.algorithm import Algorithm, Recipe, TrainResult
    from rl.trainers.algorithms.a2c import A2CConfig, train_a2c
    from rl.trainers.algorithms.act import ACTConfig, train_act
    from rl.trainers.algorithms.bc import BCConfig, train_bc
    from rl.trainers.algorithms.cem_mpc import CEMMPCConfig, train_cem_mpc
    from rl.trainers.algorithms.cql import CQLConfig, train_cql
    from rl.trainers.algorithms.diffusion_bc import DiffusionBCConfig, train_diffusion_bc
    from rl.trainers.algorithms.dqn import (
        C51Config,
        DQNConfig,
        QRDQNConfig,
        RainbowConfig,
        train_c51,
        train_dqn,
        train_qrdqn,
        train_rainbow,
    )
    from rl.trainers.algorithms.dreamer import DreamerConfig, DreamerV3Config, train_dreamer, train_dreamer_v3
    from rl.trainers.algorithms.dt import DTConfig, train_dt
    from rl.trainers.algorithms.gail import GAILConfig, train_gail
    from rl.trainers.algorithms.impala import ImpalaConfig, train_impala
    from rl.trainers.algorithms.iql import IQLConfig, train_iql
    from rl.trainers.algorithms.maddpg import MADDPGConfig, train_maddpg
    from rl.trainers.algorithms.mappo import IPPOConfig, MAPPOConfig, train_ippo, train_mappo
    from rl.trainers.algorithms.mbpo import MBPOConfig, train_mbpo
    from rl.trainers.algorithms.ppo import PPOConfig, train_ppo
    from rl.trainers.algorithms.ppo_rnd import PPORNDConfig, train_ppo_rnd
    from rl.trainers.algorithms.qmix import IQLMAConfig, QMIXConfig, VDNConfig, train_iql_ma, train_qmix, train_vdn
    from rl.trainers.algorithms.reinforce import ReinforceConfig, train_reinforce
    from rl.trainers.algorithms.sac import (
        CrossQConfig,
        DiscreteSACConfig,
        REDQConfig,
        SACConfig,
        TQCConfig,
        train_crossq,
        train_discrete_sac,
        train_redq,
        train_sac,
        train_tqc,
    )
    from rl.trainers.algorithms.td3 import DDPGConfig, TD3Config, train_ddpg, train_td3
    from rl.trainers.algorithms.td3_bc import TD3BCConfig, train_td3_bc
    from rl.trainers.algorithms.tdmpc2 import TDMPC2Config, train_tdmpc2
    from rl.trainers.callbacks import Callback, StopAtReturn, train
    from rl.trainers.checkpoint import Checkpoint, LoadReport, load_checkpoint, save_checkpoint
    from rl.trainers.config import RunConfig, above, at_least, checked, in_range, one_of, where
    from rl.trainers.display import Display, make_display
    from rl.trainers.envs import make_env
    from rl.trainers.evaluation import Evaluator, TrainedRun, evaluate, load_policy, load_run
    from rl.trainers.export import export_policy
    from rl.trainers.families import (
        DeterministicConfig,
        EnsembleFields,
        OfflineConfig,
        OffPolicyConfig,
        OnPolicyConfig,
        QLearningConfig,
        SoftConfig,
        WorldModelConfig,
    )
    from rl.trainers.inference import PolicyModule, Predictor
    from rl.trainers.loggers import CSVLogger, Logger, TensorBoardLogger, generate_exp_name, get_logger
    from rl.trainers.run import Run
    from rl.trainers.statistics import bootstrap_interval, interquartile_mean, probability_of_improvement
    from rl.trainers.tracking import MLflowLogger, TrackioLogger, WandbLogger

__all__ = [
    "A2CConfig",
    "ACTConfig",
    "Algorithm",
    "BCConfig",
    "C51Config",
    "CEMMPCConfig",
    "CQLConfig",
    "CSVLogger",
    "Callback",
    "Checkpoint",
    "CrossQConfig",
    "DDPGConfig",
    "DQNConfig",
    "DTConfig",
    "DeterministicConfig",
    "DiffusionBCConfig",
    "DiscreteSACConfig",
    "Display",
    "DreamerConfig",
    "DreamerV3Config",
    "EnsembleFields",
    "Evaluator",
    "GAILConfig",
    "IPPOConfig",
    "IQLConfig",
    "IQLMAConfig",
    "ImpalaConfig",
    "LoadReport",
    "Logger",
    "MADDPGConfig",
    "MAPPOConfig",
    "MBPOConfig",
    "MLflowLogger",
    "OffPolicyConfig",
    "OfflineConfig",
    "OnPolicyConfig",
    "PPOConfig",
    "PPORNDConfig",
    "PolicyModule",
    "Predictor",
    "QLearningConfig",
    "QMIXConfig",
    "QRDQNConfig",
    "REDQConfig",
    "RainbowConfig",
    "Recipe",
    "ReinforceConfig",
    "Run",
    "RunConfig",
    "SACConfig",
    "SoftConfig",
    "StopAtReturn",
    "TD3BCConfig",
    "TD3Config",
    "TDMPC2Config",
    "TQCConfig",
    "TensorBoardLogger",
    "TrackioLogger",
    "TrainResult",
    "TrainedRun",
    "VDNConfig",
    "WandbLogger",
    "WorldModelConfig",
    "__version__",
    "above",
    "at_least",
    "bootstrap_interval",
    "checked",
    "evaluate",
    "export_policy",
    "generate_exp_name",
    "get_logger",
    "in_range",
    "interquartile_mean",
    "load_checkpoint",
    "load_policy",
    "load_run",
    "make_display",
    "make_env",
    "one_of",
    "probability_of_improvement",
    "save_checkpoint",
    "train",
    "train_a2c",
    "train_act",
    "train_bc",
    "train_c51",
    "train_cem_mpc",
    "train_cql",
    "train_crossq",
    "train_ddpg",
    "train_diffusion_bc",
    "train_discrete_sac",
    "train_dqn",
    "train_dreamer",
    "train_dreamer_v3",
    "train_dt",
    "train_gail",
    "train_impala",
    "train_ippo",
    "train_iql",
    "train_iql_ma",
    "train_maddpg",
    "train_mappo",
    "train_mbpo",
    "train_ppo",
    "train_ppo_rnd",
    "train_qmix",
    "train_qrdqn",
    "train_rainbow",
    "train_redq",
    "train_reinforce",
    "train_sac",
    "train_td3",
    "train_td3_bc",
    "train_tdmpc2",
    "train_tqc",
    "train_vdn",
    "where",
]

__getattr__, __dir__ = lazy_exports(__name__)
