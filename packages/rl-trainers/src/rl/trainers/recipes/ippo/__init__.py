"""Proximal policy optimization of independent agents."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.trainers.recipes.ippo._config import IPPOConfig
    from rl.trainers.recipes.ippo._train import train_ippo

__all__ = ["IPPOConfig", "train_ippo"]

__getattr__, __dir__ = lazy_exports(__name__)
