"""Storages: where rows are kept."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.replay.storages._ensemble import StorageEnsemble
    from rl.replay.storages._list import CompressedListStorage, LazyStackStorage, ListStorage
    from rl.replay.storages._memmap import LazyMemmapStorage
    from rl.replay.storages._tensor import LazyTensorStorage, TensorStorage

__all__ = [
    "CompressedListStorage",
    "LazyMemmapStorage",
    "LazyStackStorage",
    "LazyTensorStorage",
    "ListStorage",
    "StorageEnsemble",
    "TensorStorage",
]

__getattr__, __dir__ = lazy_exports(__name__)
