"""Losses of action values: Q-learning and its distributional forms."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.objectives.losses.q_learning._distributional_dqn import DistributionalDQNLoss
    from rl.objectives.losses.q_learning._dqn import DQNLoss
    from rl.objectives.losses.q_learning._qr_dqn import QRDQNLoss

__all__ = ["DQNLoss", "DistributionalDQNLoss", "QRDQNLoss"]

__getattr__, __dir__ = lazy_exports(__name__)
