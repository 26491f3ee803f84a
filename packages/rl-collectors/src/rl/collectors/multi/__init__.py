"""Collectors with several worker processes."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.collectors.multi._base import Interruptor
    from rl.collectors.multi._collectors import MultiAsyncCollector, MultiCollector, MultiSyncCollector

__all__ = ["Interruptor", "MultiAsyncCollector", "MultiCollector", "MultiSyncCollector"]

__getattr__, __dir__ = lazy_exports(__name__)
