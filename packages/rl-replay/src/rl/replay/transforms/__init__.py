"""Transforms of sampled batches."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.replay.transforms._burn_in import BurnInTransform

__all__ = ["BurnInTransform"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "rl.replay.transforms._burn_in": ["BurnInTransform"],
    },
)
