"""Generative adversarial imitation learning."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.trainers.recipes.gail._config import GAILConfig
    from rl.trainers.recipes.gail._train import train_gail

__all__ = ["GAILConfig", "train_gail"]

__getattr__, __dir__ = lazy_exports(__name__)
