"""Transforms about the course of an episode."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.envs.transforms.episode._control import (
        ConditionalPolicySwitch,
        ConditionalSkip,
        EndOfLifeTransform,
        FrameSkipTransform,
        NoopResetEnv,
        RandomTruncationTransform,
        TerminateTransform,
    )
    from rl.envs.transforms.episode._counters import InitTracker, PolicyVersion, StepCounter, Timer, TrajCounter

__all__ = [
    "ConditionalPolicySwitch",
    "ConditionalSkip",
    "EndOfLifeTransform",
    "FrameSkipTransform",
    "InitTracker",
    "NoopResetEnv",
    "PolicyVersion",
    "RandomTruncationTransform",
    "StepCounter",
    "TerminateTransform",
    "Timer",
    "TrajCounter",
]

__getattr__, __dir__ = lazy_exports(__name__)
