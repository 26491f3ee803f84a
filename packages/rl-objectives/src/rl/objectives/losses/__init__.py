"""Losses on TensorDicts."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.objectives.losses._a2c import A2CLoss
    from rl.objectives.losses._base import LossModule
    from rl.objectives.losses._crossq import CrossQLoss
    from rl.objectives.losses._ddpg import DDPGLoss
    from rl.objectives.losses._discrete_sac import DiscreteSACLoss
    from rl.objectives.losses._distributional_dqn import DistributionalDQNLoss
    from rl.objectives.losses._dqn import DQNLoss
    from rl.objectives.losses._impala import ImpalaLoss
    from rl.objectives.losses._kl_pen_ppo import KLPENPPOLoss
    from rl.objectives.losses._ppo import ClipPPOLoss, PPOLoss
    from rl.objectives.losses._qr_dqn import QRDQNLoss
    from rl.objectives.losses._redq import REDQLoss
    from rl.objectives.losses._reinforce import ReinforceLoss
    from rl.objectives.losses._rnd import RNDLoss
    from rl.objectives.losses._sac import SACLoss
    from rl.objectives.losses._td3 import TD3Loss
    from rl.objectives.losses._tqc import TQCLoss

__all__ = [
    "A2CLoss",
    "ClipPPOLoss",
    "CrossQLoss",
    "DDPGLoss",
    "DQNLoss",
    "DiscreteSACLoss",
    "DistributionalDQNLoss",
    "ImpalaLoss",
    "KLPENPPOLoss",
    "LossModule",
    "PPOLoss",
    "QRDQNLoss",
    "REDQLoss",
    "RNDLoss",
    "ReinforceLoss",
    "SACLoss",
    "TD3Loss",
    "TQCLoss",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "rl.objectives.losses._a2c": ["A2CLoss"],
        "rl.objectives.losses._base": ["LossModule"],
        "rl.objectives.losses._distributional_dqn": ["DistributionalDQNLoss"],
        "rl.objectives.losses._qr_dqn": ["QRDQNLoss"],
        "rl.objectives.losses._kl_pen_ppo": ["KLPENPPOLoss"],
        "rl.objectives.losses._impala": ["ImpalaLoss"],
        "rl.objectives.losses._rnd": ["RNDLoss"],
        "rl.objectives.losses._dqn": ["DQNLoss"],
        "rl.objectives.losses._crossq": ["CrossQLoss"],
        "rl.objectives.losses._ddpg": ["DDPGLoss"],
        "rl.objectives.losses._discrete_sac": ["DiscreteSACLoss"],
        "rl.objectives.losses._redq": ["REDQLoss"],
        "rl.objectives.losses._sac": ["SACLoss"],
        "rl.objectives.losses._td3": ["TD3Loss"],
        "rl.objectives.losses._tqc": ["TQCLoss"],
        "rl.objectives.losses._ppo": ["ClipPPOLoss", "PPOLoss"],
        "rl.objectives.losses._reinforce": ["ReinforceLoss"],
    },
)
