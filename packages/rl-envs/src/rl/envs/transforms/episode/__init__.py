"""Transforms about the course of an episode."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.envs.transforms.episode._init_tracker import InitTracker
    from rl.envs.transforms.episode._step_counter import StepCounter

__all__ = ["InitTracker", "StepCounter"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "rl.envs.transforms.episode._init_tracker": ["InitTracker"],
        "rl.envs.transforms.episode._step_counter": ["StepCounter"],
    },
)
