"""Storage in a Python list that returns lazy stacks."""

from __future__ import annotations

from typing import Any, final

from tensordict import LazyStackedTensorDict, TensorDictBase

from rl.replay import _foreign
from rl.replay._arguments import Index
from rl.replay.storages._list import ListStorage

__all__ = ["LazyStackStorage"]


@final
@_foreign.lazy_stack_storage
class LazyStackStorage(ListStorage):
    """TensorDicts of different keys and shapes in a list; a batch is a lazy stack of rows, which are not joined.

    Args:
        max_size: capacity in rows.
        ragged: True for rows that may differ; see `ListStorage`.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> storage = LazyStackStorage(10)
        >>> storage.set(torch.arange(2), [TensorDict(x=torch.zeros(3)), TensorDict(x=torch.zeros(5))])
        >>> [row["x"].shape for row in storage.get(torch.tensor([1, 0])).unbind(0)]
        [torch.Size([5]), torch.Size([3])]
    """

    def __init__(self, max_size: int = 1000, *, ragged: bool = True) -> None:
        super().__init__(max_size, ragged=ragged)

    def get(self, index: Index) -> Any:
        """A lazy stack ``[n]`` of copies of the rows under `index`, or one row for an int; see `ListStorage.get`."""
        rows = super().get(index)
        if isinstance(rows, list) and rows and all(isinstance(row, TensorDictBase) for row in rows):
            return LazyStackedTensorDict(*rows, stack_dim=0)
        return rows
