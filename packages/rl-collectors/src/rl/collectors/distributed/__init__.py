"""Collectors on more than one machine."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.collectors.distributed._ray import RayCollector

__all__ = ["RayCollector"]

__getattr__, __dir__ = lazy_exports(__name__)
