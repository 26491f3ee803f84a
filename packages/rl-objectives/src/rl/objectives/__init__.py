"""Losses, value estimators and target-network updates on TensorDict."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.core import compile_with_warmup
    from rl.objectives.__about__ import __version__
    from rl.objectives._utils import distance_loss, group_optimizers, hold_out_net, hold_out_params
    from rl.objectives.estimators._gae import GAE
    from rl.objectives.estimators._kinds import ValueEstimators
    from rl.objectives.estimators._td import TD0Estimator, TD1Estimator, TDLambdaEstimator
    from rl.objectives.estimators._vtrace import VTrace
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
    from rl.objectives.targets._target_networks import HardUpdate, SoftUpdate

__all__ = [
    "GAE",
    "A2CLoss",
    "ClipPPOLoss",
    "CrossQLoss",
    "DDPGLoss",
    "DQNLoss",
    "DiscreteSACLoss",
    "DistributionalDQNLoss",
    "HardUpdate",
    "ImpalaLoss",
    "KLPENPPOLoss",
    "LossModule",
    "PPOLoss",
    "QRDQNLoss",
    "REDQLoss",
    "RNDLoss",
    "ReinforceLoss",
    "SACLoss",
    "SoftUpdate",
    "TD0Estimator",
    "TD1Estimator",
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

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "rl.core": ["compile_with_warmup"],
        "rl.objectives.__about__": ["__version__"],
        "rl.objectives._utils": ["distance_loss", "group_optimizers", "hold_out_net", "hold_out_params"],
        "rl.objectives.losses._a2c": ["A2CLoss"],
        "rl.objectives.losses._distributional_dqn": ["DistributionalDQNLoss"],
        "rl.objectives.losses._qr_dqn": ["QRDQNLoss"],
        "rl.objectives.losses._kl_pen_ppo": ["KLPENPPOLoss"],
        "rl.objectives.losses._impala": ["ImpalaLoss"],
        "rl.objectives.losses._rnd": ["RNDLoss"],
        "rl.objectives.losses._dqn": ["DQNLoss"],
        "rl.objectives.losses._base": ["LossModule"],
        "rl.objectives.losses._crossq": ["CrossQLoss"],
        "rl.objectives.losses._ddpg": ["DDPGLoss"],
        "rl.objectives.losses._discrete_sac": ["DiscreteSACLoss"],
        "rl.objectives.losses._redq": ["REDQLoss"],
        "rl.objectives.losses._sac": ["SACLoss"],
        "rl.objectives.losses._td3": ["TD3Loss"],
        "rl.objectives.losses._tqc": ["TQCLoss"],
        "rl.objectives.losses._ppo": ["ClipPPOLoss", "PPOLoss"],
        "rl.objectives.losses._reinforce": ["ReinforceLoss"],
        "rl.objectives.targets._target_networks": ["HardUpdate", "SoftUpdate"],
        "rl.objectives.estimators._gae": ["GAE"],
        "rl.objectives.estimators._kinds": ["ValueEstimators"],
        "rl.objectives.estimators._td": ["TD0Estimator", "TD1Estimator", "TDLambdaEstimator"],
        "rl.objectives.estimators._vtrace": ["VTrace"],
    },
)
