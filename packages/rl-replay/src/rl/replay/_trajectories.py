"""Trajectories of a storage: end flags and trajectory ids are read from the batches that are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.errors import CheckpointError, ContractError
from rl.core.interfaces import Storage
from rl.core.keys import DONE, TERMINATED, TRAJ_IDS, TRUNCATED, NestedKey, as_tuple, key_str, next_key, unwrap
from rl.replay._indices import Longs
from rl.replay._slice_table import TrajectoryTable
from rl.replay._state import Fields, Stateful

Marks = tuple[NDArray[np.bool_], NDArray[Any] | None]
"""For each row, whether it is the last of its trajectory, and its trajectory id; None if rows have no ids."""

_ENDS = (next_key(DONE), next_key(TERMINATED), next_key(TRUNCATED))
_IDS: tuple[NestedKey, ...] = (TRAJ_IDS, "episode")
_PART = 1 << 16  # rows of a storage of another package that are read at a time


class Boundaries:
    """Reader of end flags and trajectory ids.

    Args:
        owner: Component that messages name.
        end_key: Flag of the last step; if None, the stored ones of ``("next", "done")``, ``("next", "terminated")``
            and ``("next", "truncated")``. Of flags in a group of agents any ends the trajectory. A list of flags: any
            of those that are stored.
        traj_key: Trajectory id; if None, ``("collector", "traj_ids")`` or ``"episode"`` if stored.
    """

    def __init__(self, owner: str, end_key: NestedKey | list[NestedKey] | None, traj_key: NestedKey | None) -> None:
        self.owner: Final = owner
        several = isinstance(end_key, list)
        named = [] if end_key is None else [unwrap(key) for key in (end_key if several else [end_key])]
        self.ends: Final[tuple[NestedKey, ...]] = tuple(named) or _ENDS
        self.ids: Final[tuple[NestedKey, ...]] = _IDS if traj_key is None else (unwrap(traj_key),)
        self._named: Final = [*([] if several else named), *([] if traj_key is None else self.ids)]
        self._any_of: Final = named if several else []

    def of_batch(self, data: Any, lead: Sequence[int]) -> Marks:
        """Return marks of a batch whose first dimensions `lead` count rows, or of a list of rows.

        Raises:
            ContractError: If it has neither end flags nor trajectory ids, or lacks `end_key` or `traj_key`.
        """
        if isinstance(data, TensorDictBase):
            if data.batch_dims > len(lead):
                self._raise_longer(f"the batch has shape {list(data.batch_size)}", lead)
            return self._marks(lambda key: data.get(key, None), lead, data)
        rows = data if isinstance(data, (list, tuple)) else []
        first: Any = rows[0] if rows else data
        if not rows or not all(isinstance(row, TensorDictBase) for row in rows):
            raise ContractError(
                f"{self.owner} reads where trajectories end under {self._wanted()}, and rows of type"
                f" {type(first).__name__} have no entries: store TensorDicts"
            )
        if first.batch_dims:
            self._raise_longer(f"a row has shape {list(first.batch_size)}", lead)

        def stacked(key: NestedKey) -> Tensor | None:
            cells = [row.get(key, None) for row in rows]
            missing = sum(cell is None for cell in cells)
            if 0 < missing < len(cells):
                raise ContractError(
                    f"{self.owner}: {missing} of {len(cells)} rows lack {key_str(key)}, the others have it"
                )
            return None if missing else torch.stack(cells)

        return self._marks(stacked, lead, first)

    def of_storage(self, storage: Storage) -> Marks:
        """Return marks of all rows of a storage, in the order of their indices.

        Raises:
            ContractError: As `of_batch`.
        """
        columns = read_columns(storage, [*self.ends, *self.ids], None)
        return self._marks(columns.get, (len(storage),), storage)

    def _marks(self, get: Callable[[NestedKey], Any], lead: Sequence[int], source: Any) -> Marks:
        ends = {key: value for key in self.ends if (value := get(key)) is not None}
        ids = next(((key, value) for key in self.ids if (value := get(key)) is not None), None)
        missing = [key for key in self._named if key not in ends and (ids is None or key != ids[0])]
        missing = self._any_of if self._any_of and not ends else missing
        if missing or not (ends or ids):
            self._raise_missing(missing, source)
        count = lead[0] if len(lead) == 1 else torch.Size(lead).numel()
        last: NDArray[np.bool_] | None = None
        for key, value in ends.items():
            flag = self._column(key, value, lead, count)
            flag = flag if flag.dtype == np.bool_ else flag.astype(np.bool_)
            last = flag if last is None else last | flag
        if last is None:
            last = np.zeros(count, np.bool_)
        return last, None if ids is None else self._column(*ids, lead, count)

    def _column(self, key: NestedKey, value: Any, lead: Sequence[int], count: int) -> NDArray[Any]:
        if type(value) is Tensor and value.dtype is torch.bool and value.is_cpu and value.numel() == count:
            flags: NDArray[Any] = value.numpy().reshape(-1)  # the common case
            return flags
        if not isinstance(value, Tensor):
            raise ContractError(f"{self.owner}: {key_str(key)} is a {type(value).__name__}, expected a tensor")
        if len(as_tuple(key)) > len(as_tuple(_ENDS[0])) and value.shape[: len(lead)] == torch.Size(lead):
            value = value.reshape(count, -1).any(-1)  # of agents
        if value.numel() != count:
            self._raise_longer(f"{key_str(key)} has shape {list(value.shape)}", lead)
        if value.requires_grad:
            value = value.detach()
        if value.dtype.is_floating_point:
            value = value.double()  # NumPy lacks bfloat16
        array: NDArray[Any] = (value if value.is_cpu else value.cpu()).numpy()
        return array.reshape(-1)

    def _raise_longer(self, found: str, lead: Sequence[int]) -> NoReturn:
        raise ContractError(
            f"{self.owner}: {found} for {torch.Size(lead).numel()} rows, expected flags {list(lead)} or {[*lead, 1]}: a"
            " row is one step here. Store batches [environments, time] in a storage with ndim=2, or flatten them"
        )

    def _raise_missing(self, missing: Sequence[NestedKey], source: Any) -> NoReturn:
        keys = _keys_of(source)
        if missing:
            named = (" or " if missing is self._any_of else " and ").join(map(key_str, missing))
            raise ContractError(
                f"{self.owner} reads {named}, and the rows do not have it (they have: {keys}): name an entry that"
                " they have, or omit end_key and traj_key"
            )
        raise ContractError(
            f"{self.owner} reads where trajectories end under {self._wanted()}, and the rows have neither (they have:"
            f" {keys}): keep one of them, or name another entry with end_key= or traj_key="
        )

    def _wanted(self) -> str:
        return f"{', '.join(map(key_str, self.ends))} (end_key) or {', '.join(map(key_str, self.ids))} (traj_key)"


class Unbounded:
    """Reader of rows that no flag separates: a trajectory is what one environment wrote."""

    ends: Final[tuple[NestedKey, ...]] = ()
    ids: Final[tuple[NestedKey, ...]] = ()

    def of_batch(self, data: Any, lead: Sequence[int]) -> Marks:  # noqa: ARG002  as `Boundaries`
        """Return marks of a batch whose first dimensions `lead` count rows."""
        return np.zeros(torch.Size(lead).numel(), np.bool_), None

    def of_storage(self, storage: Storage) -> Marks:
        """Return marks of all rows of a storage."""
        return np.zeros(len(storage), np.bool_), None


def read_columns(storage: Any, keys: Sequence[NestedKey], index: Tensor | None) -> dict[NestedKey, Tensor]:
    """Entries of the rows under `index` ``[*n]``, or of all rows, of any storage; absent entries are omitted."""
    if hasattr(storage, "columns"):
        return storage.columns(keys, index)
    wanted = torch.arange(len(storage), device="cpu") if index is None else index
    parts: list[dict[NestedKey, Tensor]] = []
    for part in wanted.reshape(-1).split(_PART):
        rows = storage.get(part)
        if isinstance(rows, list) and rows and all(isinstance(row, TensorDictBase) for row in rows):
            rows = torch.stack(rows)
        if not isinstance(rows, TensorDictBase):
            return {}
        cells = {key: rows.get(key, None) for key in keys}
        parts.append({key: cell for key, cell in cells.items() if isinstance(cell, Tensor)})
    if not parts:
        return {}
    merged = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
    return {key: cell.reshape(*wanted.shape, *cell.shape[1:]) for key, cell in merged.items()}


def _keys_of(source: Any) -> str:
    if isinstance(source, TensorDictBase):
        found: list[Any] = list(source.keys(include_nested=True, leaves_only=True))
    else:
        layout = getattr(source, "layout", None)
        found = [] if layout is None else list(layout.columns)
    return ", ".join(key_str(key) if key else "plain tensors" for key in found) or "unknown entries"


class Trajectories(Stateful):
    """Follows the writes to a storage with a `TrajectoryTable`, as a part of a buffer or the base of one.

    Appending rows takes time proportional to their number. Other changes (rows that were there before, or were
    written past the buffer) change its length or `revision`; the table is then rebuilt from the stored flags, in one
    pass, before the next sample.

    Args:
        owner: Component that messages name.
        boundaries: Reader of end flags and trajectory ids.
    """

    def __init__(self, owner: str, boundaries: Boundaries | Unbounded) -> None:
        self._owner: Final = owner
        self._boundaries: Final = boundaries
        self._storage: Storage | None = None
        self._bound = False  # the storage was attached by a buffer
        self._table: TrajectoryTable | None = None
        self._waiting: list[tuple[Tensor, Any]] = []  # rows written before a storage was attached
        self._admitted: tuple[Any, Marks] | None = None
        self._forget()

    def attach(self, storage: Storage) -> None:
        """Read the trajectories of `storage`; called by the buffer that owns both.

        Which environment wrote a row of a file opened again with ``ndim=2`` is known only after a state is loaded: the
        table is then built when it is first read.

        Raises:
            ContractError: If its rows have no end flags and no trajectory ids, or another buffer attached its storage.
        """
        if storage is not self._storage:
            self._adopt(storage)
        self._bound = True
        unknown = getattr(storage, "ndim", 1) > 1 and not hasattr(storage, "lead")
        self._stale |= unknown and (self._table is None or self._table.rows != len(storage))
        if len(storage) and not self._stale:
            self.table_of(storage)

    def table_of(self, storage: Storage) -> TrajectoryTable:
        """Return the table of `storage`; rebuilt if rows were written past the buffer."""
        if storage is not self._storage:
            self._adopt(storage)
        table = self._table
        assert table is not None
        revision = getattr(storage, "revision", None)
        if self._expected is None:
            self._expected = revision
        if self._stale or table.rows != len(storage) or self._expected != revision:
            self._rebuild(table, storage)
            self._stale, self._expected = False, revision
        return table

    def read(self, storage: Storage, cursor: int) -> TrajectoryTable:
        """Return the table of a storage whose next row goes to `cursor`, read from its rows."""
        self._adopt(storage)
        table, rows = self._table, len(storage)
        if table is None or getattr(storage, "ndim", 1) > 1:
            return self.table_of(storage)
        ends, ids = self._boundaries.of_storage(storage)
        oldest = cursor if rows == table.capacity else 0
        order = _ring(oldest, rows, table.capacity)
        table.clear(oldest)
        table.write(ends[order][None], None if ids is None else ids[order][None])
        return table

    def admit(self, data: Any) -> None:
        """Check a batch before it is written.

        Raises:
            ContractError: If it has no end flags and no trajectory ids.
        """
        self._admitted = None
        self._admitted = (data, self._boundaries.of_batch(data, self._row_dims(data)))

    def extended(self, index: Tensor, data: Any) -> None:
        """Add rows that were just written to the table of trajectories."""
        admitted, self._admitted = self._admitted, None
        table = self._table
        if table is None or self._storage is None:
            self._waiting.append((index, data))
            return
        lead = self._row_dims(data, len(index))
        if admitted is None or admitted[0] is not data:
            admitted = (data, self._boundaries.of_batch(data, lead))
        ends, ids = admitted[1]
        if self._expected is None:
            self._expected = getattr(self._storage, "revision", None)
        elif isinstance(self._expected, int):
            self._expected += 1
        steps = lead[-1]
        rows = index.cpu().numpy().reshape(-1, steps).T.ravel()  # as they follow each other in the ring
        follows = len(rows) <= table.capacity and not np.count_nonzero(
            rows != _ring(table.clock, len(rows), table.capacity)
        )
        if self._stale or not follows:
            self._stale, self._cursor = True, (int(rows[-1]) + 1) % table.capacity
            return
        table.write(ends.reshape(-1, steps), None if ids is None else ids.reshape(-1, steps))

    def replaced(self, index: Tensor, data: Any) -> None:  # noqa: ARG002  as `extended`
        """Read the trajectories again after stored rows were replaced, with the environments that are known."""
        self._admitted, self._expected = None, -1

    def patched(self, keys: Sequence[NestedKey]) -> None:
        """Entries `keys` of some rows were replaced; the table stays if it does not depend on them."""
        if isinstance(self._expected, int) and not {*self._boundaries.ends, *self._boundaries.ids} & {*keys}:
            self._expected += 1

    def empty(self) -> None:
        """Forget all trajectories."""
        self._waiting.clear()
        self._forget()
        if not self._bound:  # the next storage may be another one
            self._storage = self._table = None
        if self._table is not None:
            self._table.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the table of trajectories."""
        if self._storage is not None and len(self._storage):
            self.table_of(self._storage)
        table = self._table
        return {
            "capacity": None if table is None else table.capacity,
            "table": None if table is None else table.state(),
        }

    def _load(self, state: Any, rows: int | None, max_size: int | None) -> None:
        fields, capacity = Fields(self._owner, state, ("capacity", "table")), None
        table = self._table
        max_size = table.capacity if max_size is None and table is not None else max_size
        if fields["capacity"] is not None:
            capacity = fields.integer("capacity", low=1)
            if max_size not in (None, capacity):
                raise CheckpointError(
                    f"{self._owner} samples from {max_size} rows at most, the state is of a storage of {capacity}"
                )
            self._table = TrajectoryTable.from_state(self._owner, capacity, fields["table"])
        elif table is not None:
            self._table = TrajectoryTable(table.capacity) if self._bound else None
        if rows and (capacity is None or self._table is None or self._table.rows != rows):
            fields.fail(f"its table of trajectories is not that of a storage with {rows} rows")
        self._storage = self._storage if self._bound else None
        self._waiting = []
        self._forget()

    @property
    def _current(self) -> TrajectoryTable | None:
        """The table, if it has the rows of the last write."""
        return None if self._stale else self._table

    def _known(self) -> str:
        known = "no storage yet" if self._table is None else f"{len(self._table)} trajectories"
        ends, ids = (", ".join(map(key_str, keys)) for keys in (self._boundaries.ends, self._boundaries.ids))
        return f"{known}, read from {ends} or {ids}"

    def _forget(self) -> None:
        self._stale = False
        self._cursor = 0  # where the next row goes, after a write out of order
        self._expected: Any = None  # revision of the storage if every write was reported; None if unknown

    def _adopt(self, storage: Storage) -> None:
        """Follow another storage.

        Raises:
            ContractError: If a buffer has attached a storage.
        """
        if self._bound:
            raise ContractError(f"{self._owner} belongs to another buffer: use one sampler for each buffer")
        table = self._table
        if table is None or self._storage is not None or table.capacity != storage.max_size:
            self._table = TrajectoryTable(storage.max_size)
            self._forget()
        self._storage = storage
        waiting, self._waiting = self._waiting, []
        for index, data in waiting:
            self.extended(index, data)
        self._expected = None

    def _row_dims(self, data: Any, count: int | None = None) -> tuple[int, ...]:
        """Leading dimensions of a batch that count rows."""
        dims: int = getattr(self._storage, "ndim", 1)
        shape = getattr(data, "shape", None)
        if shape is None or dims == 1:
            return (len(data) if count is None else count,)
        return tuple(shape[:dims])

    def _rebuild(self, table: TrajectoryTable, storage: Storage) -> None:
        """Rebuild the table from the stored flags and ids."""
        ends, ids = self._boundaries.of_storage(storage)
        rows, size, lead = len(storage), table.capacity, getattr(storage, "lead", ())
        known = not self._stale and table.rows == rows
        clock, sections = (table.clock, table.sections) if known else (self._cursor, [])
        if not (sections and sections[0][0] <= clock - rows):  # in an unknown order: that of the indices
            cursor = clock % size if rows == size else 0
            clock = cursor + rows
            sections = [(cursor, 1), (size, 1)] if cursor else [(0, 1)]
            if len(lead) > 1 and not self._stale and rows == torch.Size(lead).numel():
                sections = [(begin, 1) for begin in range(0, rows, lead[-1])]
            elif getattr(storage, "ndim", 1) > 1:
                if ids is None:
                    self._raise_unknown()
                order = _ring(cursor, rows, size)
                table.replace(_lines_by_id(ends[order], ids[order], cursor), clock)
                sections = []
        oldest = clock - rows
        for (start, envs), (stop, _) in pairwise([*sections, (clock, 0)]):
            begin = start + max(oldest - start, 0) // envs * envs
            if start == sections[0][0]:
                table.clear(begin)
            table.cut(envs)
            for low, high in ((begin, begin + envs), (begin + envs, stop)):  # some of the first may be overwritten
                if low < high <= stop:
                    part = _ring(low, high - low, size).reshape(-1, envs).T
                    table.write(ends[part], None if ids is None else ids[part])
        if not known and not self._stale:
            table.cut()  # the next rows may not continue the last trajectory

    def _raise_unknown(self) -> NoReturn:
        ids = "".join(f", store trajectory ids under {key_str(key)}" for key in self._boundaries.ids[:1])
        raise ContractError(
            f"{self._owner}: rows of a storage with ndim=2 were written past the buffer, so that it is unknown which"
            f" environment each belongs to: write with buffer.extend{ids}, or load the state of the buffer that wrote"
            " them"
        )


def stored_trajectories(storage: Storage, sampler: Any, cursor: int, traj_key: NestedKey | None) -> list[Tensor]:
    """Rows of each stored trajectory in the order of time, int64 ``[steps]``; the oldest trajectory first.

    Args:
        storage: Storage of a buffer.
        sampler: Sampler of the buffer; a slice sampler knows the trajectories.
        cursor: Row that is written next.
        traj_key: Trajectory id; see `Boundaries`.

    Raises:
        ContractError: If rows have no end flags and no trajectory ids.
    """
    if not len(storage):
        return []
    if isinstance(sampler, Trajectories) and traj_key is None:
        table = sampler.table_of(storage)
    else:
        owner = "ReplayBuffer.query"
        table = Trajectories(owner, Boundaries(owner, None, traj_key)).read(storage, cursor)
    numbers = table.by_time(np.flatnonzero(table.steps))
    counts = table.steps[numbers].tolist()
    return [
        torch.from_numpy(table.rows_of(np.full(count, number), np.arange(count)))
        for number, count in zip(numbers.tolist(), counts, strict=True)
    ]


def _ring(clock: int, count: int, capacity: int) -> Longs:
    """Rows of `count` global steps from `clock` on, int64 ``[count]``."""
    begin = clock % capacity
    rows = np.arange(begin, begin + count)
    if begin + count > capacity:
        rows %= capacity
    return rows


def _lines_by_id(ends: NDArray[np.bool_], ids: NDArray[Any], clock: int) -> Longs:
    """Trajectories, see `TrajectoryTable.replace`, of rows of unknown environments: the next step has the same id.

    Args:
        ends: Last step of a trajectory, bool ``[n]``.
        ids: Trajectory ids ``[n]``.
        clock: Global step of the first row.
    """
    order = np.argsort(ids, kind="stable")
    ahead = np.diff(order)
    over = ends[order[:-1]] | (ids[order[1:]] != ids[order[:-1]])
    over[1:] |= ~over[:-1] & (ahead[1:] != ahead[:-1])  # another number of environments from here on
    at = np.append(0, over.nonzero()[0] + 1)
    steps = np.diff(at, append=len(order))
    stride = np.where(steps > 1, np.append(ahead, 1)[at], 1)
    return np.stack([clock + order[at], steps, stride])
