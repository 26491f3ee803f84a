"""Storages: where rows are kept."""

from rl.replay.storages._list import ListStorage
from rl.replay.storages._memmap import LazyMemmapStorage
from rl.replay.storages._tensor import LazyTensorStorage, TensorStorage

__all__ = ["LazyMemmapStorage", "LazyTensorStorage", "ListStorage", "TensorStorage"]
