"""Transforms about the course of an episode."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.envs.transforms.episode._conditional_policy_switch import ConditionalPolicySwitch
    from rl.envs.transforms.episode._conditional_skip import ConditionalSkip
    from rl.envs.transforms.episode._end_of_life import EndOfLifeTransform
    from rl.envs.transforms.episode._frame_skip import FrameSkipTransform
    from rl.envs.transforms.episode._init_tracker import InitTracker
    from rl.envs.transforms.episode._noop_reset import NoopResetEnv
    from rl.envs.transforms.episode._policy_version import PolicyVersion
    from rl.envs.transforms.episode._random_truncation import RandomTruncationTransform
    from rl.envs.transforms.episode._step_counter import StepCounter
    from rl.envs.transforms.episode._terminate import TerminateTransform
    from rl.envs.transforms.episode._timer import Timer
    from rl.envs.transforms.episode._traj_counter import TrajCounter

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
