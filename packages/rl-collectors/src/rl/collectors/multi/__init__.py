"""Collectors with several worker processes."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.collectors.multi._async import MultiAsyncCollector
    from rl.collectors.multi._interruptor import Interruptor
    from rl.collectors.multi._multi import MultiCollector
    from rl.collectors.multi._sync import MultiSyncCollector

__all__ = ["Interruptor", "MultiAsyncCollector", "MultiCollector", "MultiSyncCollector"]

__getattr__, __dir__ = lazy_exports(__name__)
