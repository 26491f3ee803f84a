"""Storages: where rows are kept."""

from rl.replay._list import ListStorage
from rl.replay._memmap import LazyMemmapStorage
from rl.replay._tensor_storages import LazyTensorStorage, TensorStorage

__all__ = ["LazyMemmapStorage", "LazyTensorStorage", "ListStorage", "TensorStorage"]
