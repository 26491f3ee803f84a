"""Proximal policy optimization with random network distillation."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.trainers.recipes.ppo_rnd._config import PPORNDConfig
    from rl.trainers.recipes.ppo_rnd._train import train_ppo_rnd

__all__ = ["PPORNDConfig", "train_ppo_rnd"]

__getattr__, __dir__ = lazy_exports(__name__)
