"""Distributional deep Q-learning with quantiles."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.trainers.recipes.qrdqn._config import QRDQNConfig
    from rl.trainers.recipes.qrdqn._train import train_qrdqn

__all__ = ["QRDQNConfig", "train_qrdqn"]

__getattr__, __dir__ = lazy_exports(__name__)
