"""Names that existing code uses."""

from __future__ import annotations

import warnings
from typing import Any

from rl.collectors._collector import Collector
from rl.collectors.multi._collectors import MultiAsyncCollector, MultiSyncCollector


class SyncDataCollector(Collector):
    """The former name of `Collector`; the same class otherwise.

    Example:
        >>> issubclass(SyncDataCollector, Collector)
        True
    """

    def __init__(self, create_env_fn: Any, policy: Any = None, **options: Any) -> None:
        _warn("SyncDataCollector", "Collector")
        super().__init__(create_env_fn, policy, **options)


class MultiSyncDataCollector(MultiSyncCollector):
    """The former name of `MultiSyncCollector`; the same class otherwise."""

    def __init__(self, create_env_fn: Any = None, policy: Any = None, **options: Any) -> None:
        _warn("MultiSyncDataCollector", "MultiSyncCollector")
        super().__init__(create_env_fn, policy, **options)


class MultiaSyncDataCollector(MultiAsyncCollector):
    """The former name of `MultiAsyncCollector`; the same class otherwise."""

    def __init__(self, create_env_fn: Any = None, policy: Any = None, **options: Any) -> None:
        _warn("MultiaSyncDataCollector", "MultiAsyncCollector")
        super().__init__(create_env_fn, policy, **options)


def _warn(old: str, new: str) -> None:
    warnings.warn(f"{old} is an old name: use {new}, with the same arguments", DeprecationWarning, stacklevel=3)
