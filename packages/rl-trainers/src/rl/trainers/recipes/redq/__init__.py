"""Randomized ensembled double Q-learning."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.trainers.recipes.redq._config import REDQConfig
    from rl.trainers.recipes.redq._train import train_redq

__all__ = ["REDQConfig", "train_redq"]

__getattr__, __dir__ = lazy_exports(__name__)
