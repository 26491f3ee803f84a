"""Values that change with the number of steps."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.replay.schedules._linear import LinearScheduler
    from rl.replay.schedules._step import StepScheduler

__all__ = ["LinearScheduler", "StepScheduler"]

__getattr__, __dir__ = lazy_exports(__name__)
