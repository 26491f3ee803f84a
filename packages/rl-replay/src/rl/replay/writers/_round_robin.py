"""Writer for a ring: the newest row takes the place of the oldest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, final

import numpy as np
import torch
from torch import Tensor

from rl.core.errors import ContractError, ShapeError
from rl.core.interfaces import Storage
from rl.replay import _foreign
from rl.replay._state import Apply, Fields, Stateful

__all__ = ["RoundRobinWriter", "TensorDictRoundRobinWriter"]


@final
@_foreign.writer
class RoundRobinWriter(Stateful):
    """Writer that fills the storage in order and, when it is full, overwrites the oldest rows.

    Writing into a storage that already holds rows starts after them.

    Args:
        track_generations: count the writes of each row, see `generations_of`: the index of an overwritten row is then
            recognized. Samples of the buffer then have ``index_generation``, int64 ``[n]``.

    Example:
        >>> from rl.replay.storages import ListStorage
        >>> writer, storage = RoundRobinWriter(track_generations=True), ListStorage(4)
        >>> index = writer.claim(storage, 3)
        >>> writer.extended(index, ["a", "b", "c"])
        >>> index.tolist(), writer.claim(storage, 3).tolist()
        ([0, 1, 2], [3, 0, 1])
        >>> writer.extended(writer.claim(storage, 3), ["d", "e", "f"])
        >>> writer.generations_of(index).tolist()
        [1, 1, 0]
    """

    def __init__(self, *, track_generations: bool = False) -> None:
        self._cursor: int | None = None
        self._claimed: int | None = None  # the cursor after the last claim
        self._free: Tensor | None = None  # rows of `reuse`
        self.run: slice | None = None
        """The rows of the last claim, if they are adjacent."""
        self.tracks_generations: Final = track_generations
        self._generations = torch.empty(0, dtype=torch.int64, device="cpu")

    @property
    def cursor(self) -> int:
        """Where the next row goes."""
        return self._cursor or 0

    @property
    def position(self) -> int | None:
        """Where the next row goes; None for the first place after the stored rows."""
        return self._cursor

    def move(self, position: int | None) -> None:
        """Continue at another place, as another process that writes into the same storage has left it."""
        self._cursor = self._claimed = position

    def attach(self, storage: Storage) -> None:
        """Count the writes of the rows of `storage` from now on; called by the buffer that owns both."""
        if self.tracks_generations:
            new = torch.full((storage.max_size - len(self._generations),), -1, device="cpu")
            self._generations = torch.cat((self._generations, new))
            self._generations[: len(storage)].clamp_(min=0)

    def reuse(self, rows: Tensor) -> None:
        """Let the next claim begin with `rows`, int64 ``[n]``, which are free although the storage has them."""
        self._free = rows if len(rows) else None

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
        if self.tracks_generations and len(self._generations) < size:
            self.attach(storage)
        start = len(storage) % size if self._cursor is None else self._cursor
        if self._free is not None:
            return self._claim_free(start, count, size)
        stop = start + count
        index = torch.from_numpy(np.arange(start, stop))  # takes half of the time of torch.arange
        if stop > size:
            index.remainder_(size)
        self.run = None if stop > size else slice(start, stop)
        self._claimed = stop % size
        return index

    def extended(self, index: Tensor, data: Any) -> None:  # noqa: ARG002  the protocol names them
        """Move the cursor past the rows of the last claim, and count their writes."""
        self._cursor = self._claimed
        if self.tracks_generations:
            self.rewritten(index)

    def rewritten(self, index: Tensor) -> None:
        """Count a write of the rows `index` ``[n]``, all different, which were replaced in place."""
        if self.tracks_generations:
            self._generations.numpy()[index.cpu().numpy()] += 1

    def generations_of(self, index: Tensor | int) -> Tensor:
        """How often each row was overwritten, int64 in the shape of `index`; -1 for rows that were never written.

        Raises:
            ContractError: if the writer does not count writes.
        """
        if not self.tracks_generations:
            raise ContractError(
                "RoundRobinWriter: writes are not counted; construct it with RoundRobinWriter(track_generations=True)"
            )
        index = torch.as_tensor(index, device="cpu").long()
        known = (index >= 0) & (index < len(self._generations))
        found = torch.full_like(index, -1)
        found[known] = self._generations[index[known]]
        return found

    def empty(self) -> None:
        """Start at the first place again; generations continue, so that no earlier index is valid."""
        self._cursor = self._claimed = self._free = None
        self._generations[self._generations >= 0] += 1

    def state_dict(self) -> dict[str, Any]:
        """The cursor, and the generations if they are tracked."""
        generations = {"generations": self._generations.clone()} if self.tracks_generations else {}
        return {"cursor": self._cursor, **generations}

    def prepare_load(self, state: Mapping[str, Any], rows: int | None = None, max_size: int | None = None) -> Apply:
        """Validate a state without applying it; see `Stateful.prepare_load`.

        Raises:
            CheckpointError: if `state` is damaged, or of a writer for another storage.
        """
        names = ("cursor", "generations") if self.tracks_generations else ("cursor",)
        fields = Fields("RoundRobinWriter", state, names)
        cursor, generations = None, self._generations
        if fields["cursor"] is not None:
            cursor = fields.integer("cursor", high=None if max_size is None else max_size - 1)
            if rows is not None and cursor > rows:
                fields.fail(f"the next row would go to {cursor}, behind a gap after {rows} rows")
        if self.tracks_generations:
            generations = fields.indices("generations", low=-1, high=2**63 - 1).clone()
            if max_size is not None and len(generations) not in (0, max_size):
                fields.fail(f"it has generations of {len(generations)} rows, for a storage of {max_size}")
            if rows and (len(generations) < rows or int(generations[:rows].min()) < 0):
                fields.fail(f"a row of the {rows} stored ones has no generation")

        def apply() -> None:
            self._cursor = self._claimed = cursor
            self._generations, self._free = generations, None

        return apply

    def __repr__(self) -> str:
        generations = ", track_generations=True" if self.tracks_generations else ""
        return f"RoundRobinWriter(cursor={self.cursor}{generations})"

    def _claim_free(self, start: int, count: int, size: int) -> Tensor:
        """Free rows, and the next ones of the ring that are not free."""
        assert self._free is not None
        free, self._free, self.run = self._free[:count], None, None
        passed, rest = 0, torch.empty(0, dtype=torch.int64, device="cpu")
        while len(free) + len(rest) < count:
            passed += count - len(free) - len(rest)
            ring = torch.arange(start, start + passed, device="cpu") % size
            rest = ring[~torch.isin(ring, free)]
        self._claimed = (start + passed) % size
        return torch.cat((free, rest))


TensorDictRoundRobinWriter = RoundRobinWriter
"""The same: a writer does not read the rows."""
