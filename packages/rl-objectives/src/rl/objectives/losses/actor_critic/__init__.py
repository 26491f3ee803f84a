"""Off-policy actor-critic losses."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.objectives.losses.actor_critic._crossq import CrossQLoss
    from rl.objectives.losses.actor_critic._ddpg import DDPGLoss
    from rl.objectives.losses.actor_critic._discrete_sac import DiscreteSACLoss
    from rl.objectives.losses.actor_critic._redq import REDQLoss
    from rl.objectives.losses.actor_critic._sac import SACLoss
    from rl.objectives.losses.actor_critic._td3 import TD3Loss
    from rl.objectives.losses.actor_critic._tqc import TQCLoss

__all__ = ["CrossQLoss", "DDPGLoss", "DiscreteSACLoss", "REDQLoss", "SACLoss", "TD3Loss", "TQCLoss"]

__getattr__, __dir__ = lazy_exports(__name__)
