"""Losses, value estimators and target-network updates on TensorDict."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.core._compile import compile_with_warmup
    from rl.objectives.__about__ import __version__
    from rl.objectives._a2c import A2CLoss
    from rl.objectives._dqn import DQNLoss
    from rl.objectives._loss_module import LossModule
    from rl.objectives._ppo import ClipPPOLoss, PPOLoss
    from rl.objectives._reinforce import ReinforceLoss
    from rl.objectives._targets import HardUpdate, SoftUpdate
    from rl.objectives.value._gae import GAE
    from rl.objectives.value._kinds import ValueEstimators
    from rl.objectives.value._td import TD0Estimator, TD1Estimator, TDLambdaEstimator
    from rl.objectives.value._vtrace import VTrace

__all__ = [
    "GAE",
    "A2CLoss",
    "ClipPPOLoss",
    "DQNLoss",
    "HardUpdate",
    "LossModule",
    "PPOLoss",
    "ReinforceLoss",
    "SoftUpdate",
    "TD0Estimator",
    "TD1Estimator",
    "TDLambdaEstimator",
    "VTrace",
    "ValueEstimators",
    "__version__",
    "compile_with_warmup",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "rl.core._compile": ["compile_with_warmup"],
        "rl.objectives.__about__": ["__version__"],
        "rl.objectives._a2c": ["A2CLoss"],
        "rl.objectives._dqn": ["DQNLoss"],
        "rl.objectives._loss_module": ["LossModule"],
        "rl.objectives._ppo": ["ClipPPOLoss", "PPOLoss"],
        "rl.objectives._reinforce": ["ReinforceLoss"],
        "rl.objectives._targets": ["HardUpdate", "SoftUpdate"],
        "rl.objectives.value._gae": ["GAE"],
        "rl.objectives.value._kinds": ["ValueEstimators"],
        "rl.objectives.value._td": ["TD0Estimator", "TD1Estimator", "TDLambdaEstimator"],
        "rl.objectives.value._vtrace": ["VTrace"],
    },
)
