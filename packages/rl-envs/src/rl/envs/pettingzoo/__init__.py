"""Environments of PettingZoo and MPE2, with several agents."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.envs.pettingzoo._wrapper import PettingZooEnv, PettingZooWrapper

__all__ = ["PettingZooEnv", "PettingZooWrapper"]

__getattr__, __dir__ = lazy_exports(__name__)
