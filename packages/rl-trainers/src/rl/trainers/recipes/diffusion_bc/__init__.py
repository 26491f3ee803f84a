"""Diffusion policy."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.trainers.recipes.diffusion_bc._config import DiffusionBCConfig
    from rl.trainers.recipes.diffusion_bc._train import train_diffusion_bc

__all__ = ["DiffusionBCConfig", "train_diffusion_bc"]

__getattr__, __dir__ = lazy_exports(__name__)
