"""Soft actor-critic for discrete actions."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.trainers.recipes.discrete_sac._config import DiscreteSACConfig
    from rl.trainers.recipes.discrete_sac._train import train_discrete_sac

__all__ = ["DiscreteSACConfig", "train_discrete_sac"]

__getattr__, __dir__ = lazy_exports(__name__)
