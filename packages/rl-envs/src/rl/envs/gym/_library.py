"""Gymnasium, or one sentence about how to get it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl.envs._libraries import import_library

if TYPE_CHECKING:
    import gymnasium
else:
    gymnasium = import_library("gymnasium", needed_by="GymEnv", extra="gym", at_least="1.1")

__all__ = ["gymnasium"]
