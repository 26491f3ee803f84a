"""Losses of the policy gradient."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.objectives.losses.policy_gradient._base import A2CLoss, ImpalaLoss, ReinforceLoss
    from rl.objectives.losses.policy_gradient._ppo import ClipPPOLoss, KLPENPPOLoss, PPOLoss

__all__ = ["A2CLoss", "ClipPPOLoss", "ImpalaLoss", "KLPENPPOLoss", "PPOLoss", "ReinforceLoss"]

__getattr__, __dir__ = lazy_exports(__name__)
