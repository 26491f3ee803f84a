"""Losses of the policy gradient."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.objectives.losses.policy_gradient._a2c import A2CLoss
    from rl.objectives.losses.policy_gradient._impala import ImpalaLoss
    from rl.objectives.losses.policy_gradient._kl_pen_ppo import KLPENPPOLoss
    from rl.objectives.losses.policy_gradient._ppo import ClipPPOLoss, PPOLoss
    from rl.objectives.losses.policy_gradient._reinforce import ReinforceLoss

__all__ = ["A2CLoss", "ClipPPOLoss", "ImpalaLoss", "KLPENPPOLoss", "PPOLoss", "ReinforceLoss"]

__getattr__, __dir__ = lazy_exports(__name__)
