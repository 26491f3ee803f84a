"""Losses, value estimators and target-network updates on TensorDict."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.core import compile_with_warmup
    from rl.objectives.__about__ import __version__
    from rl.objectives._utils import KLAdaptiveLR, distance_loss, group_optimizers, hold_out_net, hold_out_params
    from rl.objectives.estimators import (
        GAE,
        MultiAgentGAE,
        TD0Estimator,
        TD1Estimator,
        TDLambdaEstimator,
        ValueEstimators,
        VTrace,
    )
    from rl.objectives.laprop import LaProp
    from rl.objectives.losses._base import LossModule
    from rl.objectives.losses.actor_critic._base import DDPGLoss, TD3Loss
    from rl.objectives.losses.actor_critic._sac import CrossQLoss, DiscreteSACLoss, REDQLoss, SACLoss, TQCLoss
    from rl.objectives.losses.decision_transformer import DTLoss, OnlineDTLoss
    from rl.objectives.losses.dreamer import DreamerActorLoss, DreamerModelLoss, DreamerValueLoss, LossesAndData
    from rl.objectives.losses.dreamer_v3 import DreamerV3ActorLoss, DreamerV3ModelLoss, DreamerV3ValueLoss
    from rl.objectives.losses.imitation import ACTLoss, BCLoss, DiffusionBCLoss, GAILLoss
    from rl.objectives.losses.multi_agent import IPPOLoss, MAPPOLoss, QMixerLoss
    from rl.objectives.losses.offline import CQLLoss, DiscreteCQLLoss, DiscreteIQLLoss, IQLLoss, TD3BCLoss
    from rl.objectives.losses.policy_gradient._base import A2CLoss, ImpalaLoss, ReinforceLoss
    from rl.objectives.losses.policy_gradient._ppo import ClipPPOLoss, KLPENPPOLoss, PPOLoss
    from rl.objectives.losses.q_learning import DistributionalDQNLoss, DQNLoss, QRDQNLoss
    from rl.objectives.losses.rnd import RNDLoss
    from rl.objectives.losses.tdmpc2 import TDMPC2Loss
    from rl.objectives.losses.world_models import WorldModelLoss
    from rl.objectives.targets import HardUpdate, SoftUpdate

__all__ = [
    "GAE",
    "A2CLoss",
    "ACTLoss",
    "BCLoss",
    "CQLLoss",
    "ClipPPOLoss",
    "CrossQLoss",
    "DDPGLoss",
    "DQNLoss",
    "DTLoss",
    "DiffusionBCLoss",
    "DiscreteCQLLoss",
    "DiscreteIQLLoss",
    "DiscreteSACLoss",
    "DistributionalDQNLoss",
    "DreamerActorLoss",
    "DreamerModelLoss",
    "DreamerV3ActorLoss",
    "DreamerV3ModelLoss",
    "DreamerV3ValueLoss",
    "DreamerValueLoss",
    "GAILLoss",
    "HardUpdate",
    "IPPOLoss",
    "IQLLoss",
    "ImpalaLoss",
    "KLAdaptiveLR",
    "KLPENPPOLoss",
    "LaProp",
    "LossModule",
    "LossesAndData",
    "MAPPOLoss",
    "MultiAgentGAE",
    "OnlineDTLoss",
    "PPOLoss",
    "QMixerLoss",
    "QRDQNLoss",
    "REDQLoss",
    "RNDLoss",
    "ReinforceLoss",
    "SACLoss",
    "SoftUpdate",
    "TD0Estimator",
    "TD1Estimator",
    "TD3BCLoss",
    "TD3Loss",
    "TDLambdaEstimator",
    "TDMPC2Loss",
    "TQCLoss",
    "VTrace",
    "ValueEstimators",
    "WorldModelLoss",
    "__version__",
    "compile_with_warmup",
    "distance_loss",
    "group_optimizers",
    "hold_out_net",
    "hold_out_params",
]

__getattr__, __dir__ = lazy_exports(__name__)
