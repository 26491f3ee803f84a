"""Entries under ``next`` that are read from the row of the next step, so that each observation is stored once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd
from typing import Any, Final, final

import torch
from torch import Tensor

from rl.core.interfaces import RowGather
from rl.core.keys import DONE, TERMINATED, TRUNCATED, NestedKey, as_tuple, next_key
from rl.replay._layout import Cells, Column
from rl.replay._state import Fields
from rl.replay.storages._gather import row_gather

__all__ = ["Successors", "repeated"]

_FLAGS = (DONE, TERMINATED, TRUNCATED)
_INTEGER = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}
_FEW = 64  # slots that are allocated first


def repeated(columns: Mapping[NestedKey, Column]) -> dict[NestedKey, NestedKey]:
    """Entries that rows have at the root and, with the same shape and dtype, under ``next``; end flags are not.

    Example:
        >>> column = Column(torch.Size([4]), torch.float32)
        >>> repeated({"x": column, ("next", "x"): column, ("next", "reward"): column})
        {'x': ('next', 'x')}
    """
    return {
        key: next_key(key)
        for key, column in columns.items()
        if columns.get(next_key(key)) == column
        and as_tuple(key)[-1] not in _FLAGS
        and column.dtype is not None
        and column.shape.numel()
    }


@final
class Successors:
    """For each row, where its entries under ``next`` are: in the row of the next step, or in a slot of their own.

    A row has a slot if the next step is not stored, or its entries differ by a bit: at the end of an episode and of
    what was written. `write` finds the next step by its content, in the batch itself or in the next batch, so that rows
    may come from any number of environments in any order. Before a row is overwritten, what another row reads from it
    is copied to a slot.

    Args:
        keys: entries at the root, and theirs under ``next``.
        roots: the entries at the root ``[capacity, ...]``.
        capacity: number of rows.
    """

    def __init__(self, keys: Mapping[NestedKey, NestedKey], roots: Mapping[NestedKey, Tensor], capacity: int) -> None:
        self.keys: Final = dict(keys)
        self._roots: Final = dict(roots)
        self._device: Final = next(iter(roots.values())).device
        self._after = torch.full((capacity,), -1, device=self._device)  # row of the next step, or -1 - slot
        self._before = torch.full((capacity,), -1, device=self._device)  # row that reads this one
        self._ends: dict[NestedKey, Tensor] = {key: root[:0].clone() for key, root in self._roots.items()}
        self._free: list[int] = []
        self._open = self._after[:0].clone()  # rows with a slot whose next step may be in the next batch
        self._gather: RowGather | None = None
        self._weights: dict[int, Tensor] = {}

    def __contains__(self, key: object) -> bool:
        return key in self.keys.values()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_gather": None}  # another process may have another back end

    def clear(self) -> None:
        """Forget all rows."""
        self._after.fill_(-1)
        self._before.fill_(-1)
        self._free = list(range(len(next(iter(self._ends.values())))))
        self._open = self._open[:0]

    def read(self, index: Tensor, written: int, keys: Sequence[NestedKey] | None = None) -> Cells:
        """Entries under ``next`` of the rows `index` ``[n]``, of `written` stored ones; those of `keys` if given."""
        after = self._after.index_select(0, index)
        rows = after.clamp(min=0)
        if keys is None:
            if self._gather is None:
                self._gather = row_gather(list(self._roots.values()))
            found = dict(zip(self._roots, self._gather.rows(written, rows), strict=True))
        else:
            found = {key: self._roots[key].index_select(0, rows) for key, after in self.keys.items() if after in keys}
        places = (after < 0).nonzero().squeeze(-1)
        if len(places):
            slots = -1 - after[places]
            for key, cell in found.items():
                cell.index_copy_(0, places, self._ends[key][slots])
        return {self.keys[key]: cell for key, cell in found.items()}

    def write(self, index: Tensor, cells: Cells, written: int) -> None:
        """Record the entries under ``next`` of a batch, before its other entries are written.

        Args:
            index: rows that are written, int64 ``[n]``, all different.
            cells: the batch, on the device of the rows.
            written: number of rows that were stored before.
        """
        self._release(index[index < written])
        now = [_words(cells[key]) for key in self.keys]
        after = [_words(cells[key]) for key in self.keys.values()]
        count = len(index)
        ends = torch.ones(count, dtype=torch.bool, device=self._device)
        if count > 1:
            ends[:-1] = ~_equal([part[:-1] for part in after], [part[1:] for part in now])
        tails = ends.nonzero().squeeze(-1)
        heads = torch.cat([tails[:1] * 0, tails[:-1] + 1])
        inside = (~ends).nonzero().squeeze(-1)
        self._link(index[inside], index[inside + 1])
        self._before[index[heads]] = -1
        if len(self._open):
            self._close(index[heads], now if len(heads) == count else [part[heads] for part in now])
        rows = index[tails]
        all_end = len(tails) == count
        self._store(rows, {key: cells[name] if all_end else cells[name][tails] for key, name in self.keys.items()})
        self._open = rows

    def state(self, written: int) -> dict[str, Any]:
        """The successors of `written` rows, as tensors; slots are numbered by their rows."""
        after = self._after[:written].clone()
        rows = (after < 0).nonzero().squeeze(-1)
        slots = -1 - after[rows]
        after[rows] = -1 - torch.arange(len(rows), device=self._device)
        ends = [[key, cell[slots]] for key, cell in self._ends.items()]
        return {"after": after, "ends": ends, "open": self._open.clone()}

    @staticmethod
    def check_state(owner: str, state: Any, keys: Mapping[NestedKey, NestedKey], columns: Any, written: int) -> Any:
        """The parts of a state: `after`, the slots by key, and `open`.

        Raises:
            CheckpointError: if it is damaged.
        """
        fields = Fields(owner, state, ("after", "ends", "open"))
        after = fields.tensor("after", torch.int64, 1)
        ends = {key if isinstance(key, str) else tuple(key): cell for key, cell in fields.items("ends")}
        slots, rows = -1 - after[after < 0], after[after >= 0]
        if len(after) != written or (len(rows) and int(rows.max()) >= written) or len(rows.unique()) < len(rows):
            fields.fail(f"the rows of next steps are not those of {written} rows")
        if not torch.equal(slots.sort().values, torch.arange(len(slots), device=slots.device)):
            fields.fail("a slot of a next observation is missing, or in use twice")
        for key in keys:
            cell, column = ends.get(key), columns[key]
            if (
                not isinstance(cell, Tensor)
                or cell.is_meta
                or cell.layout is not torch.strided
                or cell.dtype is not column.dtype
                or cell.shape != (len(slots), *column.shape)
            ):
                fields.fail(f"the next observations {key!r} must be {column} in each of {len(slots)} slots")
        opened = fields.indices("open", high=written)
        if ends.keys() != keys.keys() or bool((after[opened] >= 0).any()) or len(opened.unique()) < len(opened):
            fields.fail("the next observations have other entries, or an open row has no slot")
        return after, ends, opened

    def load(self, after: Tensor, ends: Mapping[NestedKey, Tensor], opened: Tensor) -> None:
        """Apply the parts of a state."""
        self.clear()
        written = len(after)
        self._after[:written] = after.to(self._device)
        rows = (self._after[:written] >= 0).nonzero().squeeze(-1)
        self._before[self._after[rows]] = rows
        self._ends = {key: ends[key].to(self._device).clone() for key in self.keys}
        self._free = []
        self._open = opened.to(self._device).clone()

    def _link(self, rows: Tensor, nexts: Tensor) -> None:
        self._after[rows] = nexts
        self._before[nexts] = rows

    def _release(self, rows: Tensor) -> None:
        """Forget the successors of rows that are about to be overwritten."""
        if not len(rows):
            return
        after = self._after[rows]
        self._free += (-1 - after[after < 0]).tolist()
        self._before[after[after >= 0]] = -1
        self._after[rows] = -1
        readers = self._before[rows]
        read = (readers >= 0).nonzero().squeeze(-1)  # by rows that stay
        if len(read):
            self._store(readers[read], {key: root[rows[read]] for key, root in self._roots.items()})
            self._before[rows] = -1
        if len(self._open):
            self._open = self._open[~torch.isin(self._open, rows)]

    def _close(self, heads: Tensor, now: list[Tensor]) -> None:
        """Let the open rows read from `heads`, the rows that begin a run of steps, where these are their next steps."""
        slots = -1 - self._after[self._open]
        where = _run_of(slots.tolist())
        ended = [_words(self._ends[key][slots if where is None else where]) for key in self.keys]
        found = self._matches(ended, now)
        known = (found >= 0).nonzero().squeeze(-1)
        if len(known):
            self._free += slots[known].tolist()
            self._link(self._open[known], heads[found[known]])

    def _matches(self, ended: list[Tensor], now: list[Tensor]) -> Tensor:
        """For each of the `ended` entries the position of an equal one of `now`, each at most once; -1 if none."""
        count, size = len(ended[0]), len(now[0])
        found = torch.full((count,), -1, device=self._device)
        if count == size:  # the usual case: as many environments as before, in the same order
            same = _equal(ended, now)
            found[same] = same.nonzero().squeeze(-1)
            if count == 1 or bool(same.all()):
                return found
        left = (found < 0).nonzero().squeeze(-1)
        free = torch.ones(size, dtype=torch.bool, device=self._device)
        free[found[found >= 0]] = False
        candidates = free.nonzero().squeeze(-1)
        names = self._hash([part[candidates] for part in now])
        order = names.argsort()
        place = torch.searchsorted(names[order], self._hash([part[left] for part in ended])).clamp(max=len(names) - 1)
        guess = candidates[order[place]]
        equal = _equal([part[left] for part in ended], [part[guess] for part in now])
        left, guess = left[equal], guess[equal]
        first = torch.full((size,), count, device=self._device).scatter_reduce(0, guess, left, "amin")
        once = first[guess] == left
        found[left[once]] = guess[once]
        return found

    def _hash(self, parts: list[Tensor]) -> Tensor:
        """A number for the content of each row, int64 ``[n]``; equal rows have equal numbers."""
        total = torch.zeros(len(parts[0]), dtype=torch.int64, device=self._device)
        for part in parts:
            width = part.shape[1]
            if width not in self._weights:
                generator = torch.Generator().manual_seed(width)
                weights = torch.randint(-(2**62), 2**62, (width,), generator=generator, device="cpu")
                self._weights[width] = weights.to(self._device)
            total = total * 31 + (part.long() * self._weights[width]).sum(1)
        return total

    def _store(self, rows: Tensor, values: Mapping[NestedKey, Tensor]) -> None:
        """Copy the entries under ``next`` of `rows` into free slots; memory grows by half if there are none."""
        count = len(rows)
        missing = count - len(self._free)
        if missing > 0:
            have = len(next(iter(self._ends.values())))
            more = max(missing, have // 2, min(_FEW, len(self._after)))
            self._ends = {
                key: torch.cat([cell, cell.new_empty(more, *cell.shape[1:])]) for key, cell in self._ends.items()
            }
            self._free += range(have, have + more)
        taken = self._free[len(self._free) - count :]
        del self._free[len(self._free) - count :]
        slots, where = torch.tensor(taken, dtype=torch.int64, device=self._device), _run_of(taken)
        for key, value in values.items():
            if where is None:
                self._ends[key].index_copy_(0, slots, value)
            else:
                self._ends[key][where] = value  # long rows are copied faster than by index
        self._after[rows] = -1 - slots


def _run_of(numbers: list[int]) -> slice | None:
    """`numbers` as a slice; None if they do not follow each other."""
    if not numbers or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        return None
    return slice(numbers[0], numbers[0] + len(numbers))


def _words(cell: Tensor) -> Tensor:
    """`cell` ``[n, ...]`` as integers ``[n, w]``, for comparisons of bits."""
    flat = cell.reshape(len(cell), -1)
    size = gcd(flat.shape[1] * flat.element_size(), 8)
    if (
        flat.stride(-1) != 1
        or (flat.storage_offset() * flat.element_size()) % size
        or (flat.stride(0) * flat.element_size()) % size
    ):
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(_INTEGER[size])


def _equal(one: Sequence[Tensor], two: Sequence[Tensor]) -> Tensor:
    """Which rows are equal in all parts, bool ``[n]``."""
    same = (one[0] == two[0]).all(1)
    for first, second in zip(one[1:], two[1:], strict=True):
        same &= (first == second).all(1)
    return same
