"""Games of OpenSpiel."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.envs.open_spiel._wrapper import OpenSpielEnv, OpenSpielWrapper

__all__ = ["OpenSpielEnv", "OpenSpielWrapper"]

__getattr__, __dir__ = lazy_exports(__name__)
