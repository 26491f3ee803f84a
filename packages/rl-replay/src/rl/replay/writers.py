"""Writers: where new rows go."""

from __future__ import annotations

import heapq
from typing import Any, Final, NoReturn, final

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.arguments import foreign_arguments, one_of
from rl.core.contract import Key, missing_key_message
from rl.core.errors import ArgumentError, ContractError, ShapeError, SpecError
from rl.core.interfaces import Storage, Writer
from rl.core.keys import NEXT, REWARD, NestedKey, key_str, leaf_keys, unwrap
from rl.replay._state import Fields, Stateful, StatefulGroup
from rl.replay._trajectories import read_columns

__all__ = [
    "ImmutableDatasetWriter",
    "RoundRobinWriter",
    "TensorDictMaxValueWriter",
    "TensorDictRoundRobinWriter",
    "WriterBase",
    "WriterEnsemble",
]


class WriterBase(Stateful):
    """Base of writers: `rl.core.interfaces.Writer` without a state, generations and a selection of rows.

    A subclass defines `claim` and what it needs of the rest. One with a state defines `state_dict` and
    `load_state_dict`. A buffer calls `attach` when it is constructed and after a state was loaded; for a write
    `select`, `reuse`, `claim` and `extended`, in this order.
    """

    cursor: int = 0
    """Row that is written next, if rows are written in order."""
    run: slice | None = None
    """Rows of the last claim if they are adjacent, which a storage of tensors copies at once; None otherwise."""
    tracks_generations: bool = False
    """Whether `generations_of` counts the writes of each row."""

    def attach(self, storage: Storage) -> None:
        """Read the rows of the storage of the buffer, which may have been written before."""

    def register_storage(self, storage: Storage) -> None:
        """Call `attach`, as TorchRL calls it; a buffer does so itself."""
        self.attach(storage)

    def select(self, storage: Storage, data: Any) -> Tensor | None:  # noqa: ARG002  subclasses use them
        """Return the positions int64 ``[m]`` of the rows of a batch to write; None for all."""
        return None

    def reuse(self, rows: Tensor) -> None:
        """Let the next claim start with `rows`, int64 ``[n]``, which the sampler has consumed."""

    def claim(self, storage: Storage, count: int) -> Tensor:
        """Return indices ``[count]`` int64 for new rows; see `rl.core.interfaces.Writer.claim`."""
        raise NotImplementedError

    def extended(self, index: Tensor, data: Any) -> None:
        """Follow the write of the claimed rows `index` ``[n]``."""

    def rewritten(self, index: Tensor) -> None:
        """Follow a replacement of the stored rows `index` ``[n]`` in place."""

    def generations_of(self, index: Tensor | int) -> Tensor:  # noqa: ARG002  subclasses use it
        """Return how often each row was overwritten, int64 in the shape of `index`.

        Raises:
            ContractError: If writes are not counted.
        """
        raise ContractError(f"{type(self).__name__} does not count the writes of rows")

    def empty(self) -> None:
        """Start again, because the storage is emptied."""


@final
class WriterEnsemble(StatefulGroup, WriterBase):
    """The writers of the members of an ensemble, which is read only itself: write to a member.

    Args:
        writers: Writers, one for each storage.
    """

    _members_as = "writers"

    def __init__(self, *writers: Writer) -> None:
        self.writers: Final = writers

    def claim(self, storage: Storage, count: int) -> NoReturn:
        """Reject.

        Raises:
            ContractError: Always.
        """
        raise ContractError(
            f"WriterEnsemble: {count} rows for an ensemble of {len(storage)} rows, which is read only: write to one of"
            " its members, ensemble[0].extend(batch) for example"
        )

    def empty(self) -> None:
        """Start each member again."""
        for writer in self.writers:
            writer.empty()

    def __repr__(self) -> str:
        return f"WriterEnsemble({', '.join(map(repr, self.writers))})"


@final
@foreign_arguments()
class ImmutableDatasetWriter(WriterBase):
    """Rejects every write: for a buffer over a dataset, whose storage is filled beforehand.

    Example:
        >>> import torch
        >>> from rl.replay.storages import TensorStorage
        >>> ImmutableDatasetWriter().claim(TensorStorage(torch.arange(3)), 1)
        Traceback (most recent call last):
        ...
        rl.core.errors.ContractError: ImmutableDatasetWriter: this buffer holds a fixed dataset, ...
    """

    def claim(self, storage: Storage, count: int) -> NoReturn:
        """Reject.

        Raises:
            ContractError: Always.
        """
        raise ContractError(
            f"ImmutableDatasetWriter: this buffer holds a fixed dataset, of {len(storage)} rows; {count} more cannot "
            "be written. Use a RoundRobinWriter for a buffer that grows"
        )

    def empty(self) -> NoReturn:
        """Reject.

        Raises:
            ContractError: Always.
        """
        raise ContractError("ImmutableDatasetWriter: this buffer holds a fixed dataset; it cannot be emptied")

    def __repr__(self) -> str:
        return "ImmutableDatasetWriter()"


_REDUCTIONS = ("max", "min", "mean", "median", "sum")


@final
@foreign_arguments()
class TensorDictMaxValueWriter(WriterBase):
    """Keeps the rows with the largest value of an entry: a full storage replaces its smallest by a larger new one.

    `extend` returns -1 as the index of a row that is not written. Of equal values the stored row stays. Rows of full
    trajectories ``[n, T]`` with the default entry are kept by their returns.

    Args:
        rank_key: Entry with the value of a row, ``[n, ...]``; ``("next", "reward")`` if None.
        reduction: Reduction of several values of a row: ``"sum"``, ``"max"``, ``"min"``, ``"mean"`` or ``"median"``.

    Raises:
        ArgumentError: If `reduction` is another one.

    Example:
        >>> from tensordict import TensorDict
        >>> from rl.replay import LazyTensorStorage, TensorDictReplayBuffer
        >>> writer = TensorDictMaxValueWriter(rank_key="score")
        >>> buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(2), writer=writer)
        >>> buffer.extend(TensorDict(score=torch.tensor([1.0, 5.0, 3.0]), batch_size=[3])).tolist()
        [-1, 0, 1]
        >>> buffer.extend(TensorDict(score=torch.tensor([2.0, 4.0]), batch_size=[2])).tolist()
        [-1, 1]
        >>> buffer[:]["score"].tolist()
        [5.0, 4.0]
    """

    def __init__(self, rank_key: NestedKey | None = None, reduction: str = "sum") -> None:
        self.rank_key: Final[NestedKey] = (NEXT, REWARD) if rank_key is None else unwrap(rank_key)
        self.reduction: Final = one_of(reduction, "TensorDictMaxValueWriter", "reduction", _REDUCTIONS)
        self._storage: Storage | None = None
        self._ranked: list[tuple[float, int]] = []  # heap of value and row; the smallest value first
        self._removed: list[tuple[float, int]] = []  # of the rows that the selected ones replace
        self._added: list[tuple[float, int]] = []  # value and row of the selected ones

    def attach(self, storage: Storage) -> None:
        """Rank the rows that `storage` has, NaN below all others; called by the buffer that owns both.

        Raises:
            ContractError: If rows lack the entry.
        """
        self._storage, rows = storage, len(storage)
        if rows and len(self._ranked) != rows:
            found = read_columns(storage, [self.rank_key], None).get(self.rank_key)
            if found is None:
                raise ContractError(f"TensorDictMaxValueWriter: stored rows have no {key_str(self.rank_key)}")
            values = self._values(found)
            self._ranked = list(zip(values.masked_fill(values.isnan(), -torch.inf).tolist(), range(rows), strict=True))
            heapq.heapify(self._ranked)

    def rewritten(self, index: Tensor) -> None:  # noqa: ARG002  the protocol names it
        """Rank all rows again, of which some were replaced in place."""
        self.empty()
        if self._storage is not None:
            self.attach(self._storage)

    def select(self, storage: Storage, data: Any) -> Tensor:
        """Positions in a batch of the rows to write, int64 ``[m]``; `claim` returns their indices.

        Reads `rank_key`.

        Raises:
            ContractError: If the entry is absent, or the storage counts several dimensions.
            SpecError: If a value is NaN.
        """
        owner = "TensorDictMaxValueWriter"
        if getattr(storage, "ndim", 1) > 1:
            raise ArgumentError(f"{owner}: a value ranks a row, so that a storage with ndim=1 is needed")
        rows = data if isinstance(data, list) else [data]
        cells: list[Any] = [row.get(self.rank_key, None) if isinstance(row, TensorDictBase) else None for row in rows]
        for row, cell in zip(rows, cells, strict=True):
            if not isinstance(cell, Tensor):
                present = leaf_keys(row) if isinstance(row, TensorDictBase) else []
                raise ContractError(missing_key_message(owner, Key(self.rank_key, remedy="Name rank_key=."), present))
        values = self._values(torch.stack(cells) if isinstance(data, list) else cells[0])
        if bool(values.isnan().any()):
            raise SpecError(f"{owner}: {key_str(self.rank_key)} has NaN values; nothing was written")
        self._restore()
        free = iter(range(len(storage), storage.max_size))
        taken: dict[int, tuple[float, int]] = {}
        numbers = values.tolist()
        for position in values.argsort(descending=True, stable=True).tolist():
            value, row = numbers[position], next(free, None)
            if row is None:
                if not self._ranked or value <= self._ranked[0][0]:
                    break
                self._removed.append(heapq.heappop(self._ranked))
                row = self._removed[-1][1]
            taken[position] = (value, row)
        self._added = [taken[position] for position in sorted(taken)]
        return torch.tensor(sorted(taken), dtype=torch.int64, device="cpu")

    def claim(self, storage: Storage, count: int) -> Tensor:  # noqa: ARG002  the protocol names them
        """Return indices of the rows of the last `select`, int64 ``[count]``.

        Raises:
            ContractError: If the rows were not selected.
        """
        if count < 1 or count != len(self._added):
            raise ContractError(
                f"TensorDictMaxValueWriter: {count} rows were not ranked: write with the `extend` of a buffer, which"
                " selects them by their values"
            )
        return torch.tensor([row for _, row in self._added], dtype=torch.int64, device="cpu")

    def extended(self, index: Tensor, data: Any) -> None:  # noqa: ARG002  the protocol names them
        """Rank the rows that were written."""
        for item in self._added:
            heapq.heappush(self._ranked, item)
        self._removed, self._added = [], []

    def empty(self) -> None:
        """Forget all rows."""
        self._ranked, self._removed, self._added = [], [], []

    def state_dict(self) -> dict[str, Any]:
        """Return the values of the rows, float64 ``[n]``."""
        self._restore()
        ranked = sorted(self._ranked, key=lambda item: item[1])
        return {
            "reduction": self.reduction,
            "values": torch.tensor([value for value, _ in ranked], dtype=torch.float64, device="cpu"),
        }

    def _load(self, state: Any, rows: int | None, max_size: int | None) -> None:  # noqa: ARG002
        fields = Fields("TensorDictMaxValueWriter", state, ("reduction", "values"))
        fields.match(reduction=self.reduction)
        values = fields.tensor("values", torch.float64, 1)
        if bool(values.isnan().any()) or (rows is not None and len(values) != rows):
            fields.fail(f"it has {len(values)} values for {rows} rows, or NaN values")
        self.empty()
        self._ranked = list(zip(values.tolist(), range(len(values)), strict=True))
        heapq.heapify(self._ranked)

    def __repr__(self) -> str:
        return f"TensorDictMaxValueWriter(rank_key={self.rank_key!r}, reduction={self.reduction!r})"

    def _restore(self) -> None:
        """Undo a selection whose rows were not written."""
        for item in self._removed:
            heapq.heappush(self._ranked, item)
        self._removed, self._added = [], []

    def _values(self, cell: Tensor) -> Tensor:
        """One value for each row, float64 ``[n]``."""
        if not cell.shape or not cell[0].numel():
            raise ShapeError(
                f"TensorDictMaxValueWriter: {key_str(self.rank_key)} is {list(cell.shape)}, expected values [n, ...]"
            )
        flat = cell.detach().reshape(len(cell), -1).double().cpu()
        if self.reduction == "median":
            return flat.median(-1).values
        return {"sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin}[self.reduction](flat, -1)


@final
@foreign_arguments()
class RoundRobinWriter(WriterBase):
    """Writer that fills the storage in order and, when it is full, overwrites the oldest rows.

    Writing into a storage that already holds rows starts after them.

    Args:
        track_generations: Whether to count the writes of each row, see `generations_of`: the index of an overwritten
            row is then recognized. Samples of the buffer then have ``index_generation``, int64 ``[n]``.

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
        self.run = None
        self.tracks_generations = track_generations
        self._generations = torch.empty(0, dtype=torch.int64, device="cpu")

    @property
    def cursor(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]  it is read only
        """Where the next row goes."""
        return self._cursor or 0

    @property
    def position(self) -> int | None:
        """Where the next row goes; None for the first position after the stored rows."""
        return self._cursor

    def move(self, position: int | None) -> None:
        """Continue at another position, as another process that writes into the same storage has left it."""
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
        """Return indices ``[count]`` int64 for `count` new rows; the cursor moves with `extended`.

        Raises:
            ShapeError: If `count` is below 1 or above the storage's capacity: rows of one batch would
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
            ContractError: If the writer does not count writes.
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
        """Start at the first position again; generations continue, so that no earlier index is valid."""
        self._cursor = self._claimed = self._free = None
        self._generations[self._generations >= 0] += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the cursor, and the generations if they are tracked."""
        generations = {"generations": self._generations.clone()} if self.tracks_generations else {}
        return {"cursor": self._cursor, **generations}

    def _load(self, state: Any, rows: int | None, max_size: int | None) -> None:
        names = ("cursor", "generations") if self.tracks_generations else ("cursor",)
        fields = Fields("RoundRobinWriter", state, names)
        cursor = None
        if fields["cursor"] is not None:
            cursor = fields.integer("cursor", high=None if max_size is None else max_size - 1)
            if rows is not None and cursor > rows:
                fields.fail(f"the next row would go to {cursor}, behind a gap after {rows} rows")
        self._cursor, self._claimed, self._free = cursor, cursor, None
        if self.tracks_generations:
            generations = fields.indices("generations", low=-1, high=2**63 - 1).clone()
            if max_size is not None and len(generations) not in (0, max_size):
                fields.fail(f"it has generations of {len(generations)} rows, for a storage of {max_size}")
            if rows and (len(generations) < rows or int(generations[:rows].min()) < 0):
                fields.fail(f"a row of the {rows} stored ones has no generation")
            self._generations = generations

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
