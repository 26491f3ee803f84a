"""Target networks and their updates."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.objectives.targets._target_networks import HardUpdate, SoftUpdate

__all__ = ["HardUpdate", "SoftUpdate"]

__getattr__, __dir__ = lazy_exports(__name__)
