"""Functions of collected batches: ``postproc=`` of a collector."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.replay.postprocs._multi_step import MultiStep

__all__ = ["MultiStep"]

__getattr__, __dir__ = lazy_exports(__name__)
