"""Names that existing code uses."""

from __future__ import annotations

import warnings
from typing import Any

from rl.collectors._collector import Collector

__all__ = ["SyncDataCollector"]


class SyncDataCollector(Collector):
    """The former name of `Collector`; the same class otherwise.

    Example:
        >>> issubclass(SyncDataCollector, Collector)
        True
    """

    def __init__(self, create_env_fn: Any, policy: Any = None, **options: Any) -> None:
        warnings.warn(
            "SyncDataCollector is an old name: use Collector, with the same arguments",
            DeprecationWarning,
            stacklevel=2,
        )
        super().__init__(create_env_fn, policy, **options)
