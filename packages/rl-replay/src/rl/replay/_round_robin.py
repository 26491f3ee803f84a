"""Writer for a ring: the newest row takes the place of the oldest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor

from rl.core.errors import ShapeError
from rl.core.interfaces import Storage

__all__ = ["RoundRobinWriter"]


@final
class RoundRobinWriter:
    """Rows go one behind the other; when the storage is full, the oldest is overwritten.

    Writing into a storage that already holds rows starts behind them.

    Example:
        >>> from rl.replay.storages import ListStorage
        >>> writer, storage = RoundRobinWriter(), ListStorage(4)
        >>> writer.claim(storage, 3).tolist(), writer.claim(storage, 3).tolist()
        ([0, 1, 2], [3, 0, 1])
    """

    def __init__(self) -> None:
        self._cursor: int | None = None

    @property
    def cursor(self) -> int:
        """Where the next row goes."""
        return self._cursor or 0

    def claim(self, storage: Storage, count: int) -> Tensor:
        """Indices ``[count]`` int64 for `count` new rows; moves the cursor.

        Raises:
            ShapeError: if `count` is below 1 or above the storage's capacity: rows of one batch would
                overwrite each other.
        """
        size = storage.max_size
        if not 1 <= count <= size:
            raise ShapeError(
                f"RoundRobinWriter: a batch of {count} rows for a storage of {size}: rows of the batch itself would "
                "be lost; extend in parts, or make the storage larger"
            )
        start = len(storage) % size if self._cursor is None else self._cursor
        index = torch.arange(start, start + count)
        if start + count > size:
            index.remainder_(size)
        self._cursor = (start + count) % size
        return index

    def empty(self) -> None:
        """Start at the first place again."""
        self._cursor = None

    def state_dict(self) -> dict[str, Any]:
        """The cursor."""
        return {"cursor": self._cursor}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the cursor of `state`."""
        self._cursor = state["cursor"]

    def __repr__(self) -> str:
        return f"RoundRobinWriter(cursor={self.cursor})"
