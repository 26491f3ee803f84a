"""Sample units: which rows each sampled row becomes in a batch."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.replay.sample_units._base import SampleUnit
    from rl.replay.sample_units._sequence import Sequence
    from rl.replay.sample_units._transition import Transition

__all__ = ["SampleUnit", "Sequence", "Transition"]

__getattr__, __dir__ = lazy_exports(__name__)
