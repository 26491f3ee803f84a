"""Environments of VMAS: batches of several agents, in torch."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.envs.vmas._wrapper import VmasEnv, VmasWrapper

__all__ = ["VmasEnv", "VmasWrapper"]

__getattr__, __dir__ = lazy_exports(__name__)
