"""Scenes of Unity ML-Agents."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.envs.unity_mlagents._wrapper import UnityMLAgentsEnv, UnityMLAgentsWrapper

__all__ = ["UnityMLAgentsEnv", "UnityMLAgentsWrapper"]

__getattr__, __dir__ = lazy_exports(__name__)
