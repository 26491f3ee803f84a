"""Off-policy actor-critic losses."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.objectives.losses.actor_critic._base import DDPGLoss, TD3Loss
    from rl.objectives.losses.actor_critic._sac import CrossQLoss, DiscreteSACLoss, REDQLoss, SACLoss, TQCLoss

__all__ = ["CrossQLoss", "DDPGLoss", "DiscreteSACLoss", "REDQLoss", "SACLoss", "TD3Loss", "TQCLoss"]

__getattr__, __dir__ = lazy_exports(__name__)
