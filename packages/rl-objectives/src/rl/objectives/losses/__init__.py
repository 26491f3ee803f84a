"""Losses on TensorDicts."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.objectives.losses._a2c import A2CLoss
    from rl.objectives.losses._base import LossModule
    from rl.objectives.losses._distributional_dqn import DistributionalDQNLoss
    from rl.objectives.losses._dqn import DQNLoss
    from rl.objectives.losses._impala import ImpalaLoss
    from rl.objectives.losses._kl_pen_ppo import KLPENPPOLoss
    from rl.objectives.losses._ppo import ClipPPOLoss, PPOLoss
    from rl.objectives.losses._qr_dqn import QRDQNLoss
    from rl.objectives.losses._reinforce import ReinforceLoss
    from rl.objectives.losses._rnd import RNDLoss

__all__ = [
    "A2CLoss",
    "ClipPPOLoss",
    "DQNLoss",
    "DistributionalDQNLoss",
    "ImpalaLoss",
    "KLPENPPOLoss",
    "LossModule",
    "PPOLoss",
    "QRDQNLoss",
    "RNDLoss",
    "ReinforceLoss",
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
        "rl.objectives.losses._ppo": ["ClipPPOLoss", "PPOLoss"],
        "rl.objectives.losses._reinforce": ["ReinforceLoss"],
    },
)
