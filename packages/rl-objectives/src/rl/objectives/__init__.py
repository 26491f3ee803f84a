"""Losses, value estimators and target-network updates on TensorDict."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.core import compile_with_warmup
    from rl.objectives.__about__ import __version__
    from rl.objectives._utils import KLAdaptiveLR, distance_loss, group_optimizers, hold_out_net, hold_out_params
    from rl.objectives.estimators._gae import GAE
    from rl.objectives.estimators._kinds import ValueEstimators
    from rl.objectives.estimators._multi_agent_gae import MultiAgentGAE
    from rl.objectives.estimators._td import TD0Estimator, TD1Estimator, TDLambdaEstimator
    from rl.objectives.estimators._vtrace import VTrace
    from rl.objectives.losses._base import LossModule
    from rl.objectives.losses._rnd import RNDLoss
    from rl.objectives.losses.actor_critic._crossq import CrossQLoss
    from rl.objectives.losses.actor_critic._ddpg import DDPGLoss
    from rl.objectives.losses.actor_critic._discrete_sac import DiscreteSACLoss
    from rl.objectives.losses.actor_critic._redq import REDQLoss
    from rl.objectives.losses.actor_critic._sac import SACLoss
    from rl.objectives.losses.actor_critic._td3 import TD3Loss
    from rl.objectives.losses.actor_critic._tqc import TQCLoss
    from rl.objectives.losses.multi_agent._mappo import IPPOLoss, MAPPOLoss
    from rl.objectives.losses.multi_agent._qmixer import QMixerLoss
    from rl.objectives.losses.offline._act import ACTLoss
    from rl.objectives.losses.offline._bc import BCLoss
    from rl.objectives.losses.offline._cql import CQLLoss, DiscreteCQLLoss
    from rl.objectives.losses.offline._diffusion_bc import DiffusionBCLoss
    from rl.objectives.losses.offline._dt import DTLoss, OnlineDTLoss
    from rl.objectives.losses.offline._gail import GAILLoss
    from rl.objectives.losses.offline._iql import DiscreteIQLLoss, IQLLoss
    from rl.objectives.losses.offline._td3_bc import TD3BCLoss
    from rl.objectives.losses.policy_gradient._a2c import A2CLoss
    from rl.objectives.losses.policy_gradient._impala import ImpalaLoss
    from rl.objectives.losses.policy_gradient._kl_pen_ppo import KLPENPPOLoss
    from rl.objectives.losses.policy_gradient._ppo import ClipPPOLoss, PPOLoss
    from rl.objectives.losses.policy_gradient._reinforce import ReinforceLoss
    from rl.objectives.losses.q_learning._distributional_dqn import DistributionalDQNLoss
    from rl.objectives.losses.q_learning._dqn import DQNLoss
    from rl.objectives.losses.q_learning._qr_dqn import QRDQNLoss
    from rl.objectives.targets._target_networks import HardUpdate, SoftUpdate

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
    "GAILLoss",
    "HardUpdate",
    "IPPOLoss",
    "IQLLoss",
    "ImpalaLoss",
    "KLAdaptiveLR",
    "KLPENPPOLoss",
    "LossModule",
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
    "TQCLoss",
    "VTrace",
    "ValueEstimators",
    "__version__",
    "compile_with_warmup",
    "distance_loss",
    "group_optimizers",
    "hold_out_net",
    "hold_out_params",
]

__getattr__, __dir__ = lazy_exports(__name__)
