"""Writer for a ring: the newest row takes the place of the oldest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor

from rl.core.errors import ShapeError
from rl.core.interfaces import Storage
from rl.replay import _foreign
from rl.replay._state import Apply, Fields

__all__ = ["RoundRobinWriter", "TensorDictRoundRobinWriter"]


@final
@_foreign.writer
class RoundRobinWriter:
    """Writer that fills the storage in order and, when it is full, overwrites the oldest rows.

    Writing into a storage that already holds rows starts after them.

    Example:
        >>> from rl.replay.storages import ListStorage
        >>> writer, storage = RoundRobinWriter(), ListStorage(4)
        >>> index = writer.claim(storage, 3)
        >>> writer.extended(index, ["a", "b", "c"])
        >>> index.tolist(), writer.claim(storage, 3).tolist()
        ([0, 1, 2], [3, 0, 1])
    """

    def __init__(self) -> None:
        self._cursor: int | None = None
        self._claimed: int | None = None  # the cursor after the last claim

    @property
    def cursor(self) -> int:
        """Where the next row goes."""
        return self._cursor or 0

    def claim(self, storage: Storage, count: int) -> Tensor:
        """Indices ``[count]`` int64 for `count` new rows; the cursor moves with `extended`.

        Raises:
            ShapeError: if `count` is below 1 or above the storage's capacity: rows of one batch would
                overwrite each other.
        """
        size = storage.max_size
        if count < 1:
            raise ShapeError("RoundRobinWriter: a batch without rows")
        if count > size:
            raise ShapeError(
                f"RoundRobinWriter: a batch of {count} rows for a storage of {size}: rows of the batch itself would "
                "be lost; extend in parts, or make the storage larger"
            )
        start = len(storage) % size if self._cursor is None else self._cursor
        index = torch.arange(start, start + count, device="cpu")
        if start + count > size:
            index.remainder_(size)
        self._claimed = (start + count) % size
        return index

    def extended(self, index: Tensor, data: Any) -> None:  # noqa: ARG002  the protocol names them
        """Move the cursor past the rows of the last claim."""
        self._cursor = self._claimed

    def empty(self) -> None:
        """Start at the first place again."""
        self._cursor = self._claimed = None

    def state_dict(self) -> dict[str, Any]:
        """The cursor."""
        return {"cursor": self._cursor}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the cursor of `state`.

        Raises:
            CheckpointError: if `state` is damaged. Nothing is changed then.
        """
        self.prepare_load(state)()

    def prepare_load(self, state: Mapping[str, Any], rows: int | None = None, max_size: int | None = None) -> Apply:
        """Validate a state without applying it; returns the function that applies it.

        Args:
            state: of `state_dict`.
            rows: number of rows that the storage will have; not known if None.
            max_size: of the storage; not known if None.

        Raises:
            CheckpointError: if `state` is damaged, or of a writer for another storage.
        """
        fields = Fields("RoundRobinWriter", state, ("cursor",))
        cursor = None
        if fields["cursor"] is not None:
            cursor = fields.integer("cursor", high=None if max_size is None else max_size - 1)
            if rows is not None and cursor > rows:
                fields.fail(f"the next row would go to {cursor}, behind a gap after {rows} rows")

        def apply() -> None:
            self._cursor = self._claimed = cursor

        return apply

    def __repr__(self) -> str:
        return f"RoundRobinWriter(cursor={self.cursor})"


TensorDictRoundRobinWriter = RoundRobinWriter
"""The same: a writer does not read the rows."""
