"""`MultiCollector`: the collector with worker processes, synchronous or not."""

from __future__ import annotations

from typing import Any

from rl.collectors.multi._async import MultiAsyncCollector
from rl.collectors.multi._sync import MultiSyncCollector

__all__ = ["MultiCollector"]


class MultiCollector:
    """`MultiSyncCollector` if `sync` is true, else `MultiAsyncCollector`; with the arguments of those.

    Args:
        create_env_fn: functions that make the environments, one for each worker process.
        policy: a TensorDict module or function, of which every worker has a copy; random actions if None.
        sync: whether a batch consists of parts of all workers, or is that of one.
        settings: further arguments of the collector.

    Example:
        >>> from rl.core.testing import CountingEnv
        >>> collector = MultiCollector([CountingEnv] * 2, sync=True, frames_per_batch=8, num_workers_per_collector=1)
        >>> collector
        MultiSyncCollector(num_workers=2, frames_per_batch=8, frames=0/-1)
        >>> collector.shutdown()
    """

    def __new__(  # pyright: ignore[reportInconsistentConstructor]
        cls, create_env_fn: Any = None, policy: Any = None, *, sync: bool, **settings: Any
    ) -> MultiSyncCollector | MultiAsyncCollector:
        kind = MultiSyncCollector if sync else MultiAsyncCollector
        return kind(create_env_fn, policy, **settings)
