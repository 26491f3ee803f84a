"""Losses on TensorDicts."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
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

__all__ = [
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
    "IPPOLoss",
    "IQLLoss",
    "ImpalaLoss",
    "KLPENPPOLoss",
    "LossModule",
    "MAPPOLoss",
    "OnlineDTLoss",
    "PPOLoss",
    "QMixerLoss",
    "QRDQNLoss",
    "REDQLoss",
    "RNDLoss",
    "ReinforceLoss",
    "SACLoss",
    "TD3BCLoss",
    "TD3Loss",
    "TQCLoss",
]

__getattr__, __dir__ = lazy_exports(__name__)
