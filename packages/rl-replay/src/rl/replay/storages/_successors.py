"""Entries under ``next`` that are read from the row of the next step, so that each observation is stored once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd
from typing import Any, Final, final

import numpy as np
import torch
from torch import Tensor

from rl.core.interfaces import RowGather
from rl.core.keys import DONE, TERMINATED, TRUNCATED, NestedKey, as_tuple, next_key
from rl.core.registry import default
from rl.replay._layout import Cells, Column
from rl.replay._state import Fields

_NOT_ALONG_ONE: Final = {torch.uint16, torch.uint32, torch.uint64}  # index_select supports these in two dimensions only
View = tuple[Tensor, torch.Size]
"""A tensor in the shape that `index_select` copies fastest, and the shape of a row."""


def row_gather(tensors: Sequence[Tensor]) -> RowGather:
    """Row copies for these tensors: the first result of `rl_row_gather`, else plain torch."""
    found = default().answer("rl_row_gather", tensors=tensors) if tensors else None
    return TorchRowGather(tensors) if found is None else found.value


def flat_rows(tensor: Tensor) -> Tensor:
    """`tensor` ``[n, ...]`` in the shape that torch copies fastest: ``[n]`` if a row has one element.

    Example:
        >>> flat_rows(torch.zeros(5, 1)).shape, flat_rows(torch.zeros(5, 3)).shape
        (torch.Size([5]), torch.Size([5, 3]))
    """
    if tensor.shape[1:].numel() != 1:
        return tensor
    return tensor.view(-1, 1) if tensor.dtype in _NOT_ALONG_ONE else tensor.view(-1)


@final
class TorchRowGather:
    """Row gather of tensors ``[capacity, ...]`` in plain torch; views of the written part are cached.

    Example:
        >>> gather = TorchRowGather([torch.arange(6).unsqueeze(-1)])
        >>> gather.rows(6, torch.tensor([4, 0]))[0].tolist()
        [[4], [0]]
        >>> gather.runs(6, torch.tensor([3, 1]), 2)[0].tolist()
        [[3], [4], [1], [2]]
    """

    name = "torch"
    why = "no installed plugin offers another"

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors: Final = tuple(tensors)
        self._rows: tuple[int, list[View]] = (-1, [])
        self._runs: tuple[tuple[int, int, int], list[tuple[Tensor, tuple[int, ...]]]] = ((-1, -1, -1), [])

    def __reduce__(self) -> tuple[type[TorchRowGather], tuple[Any]]:
        return TorchRowGather, (self._tensors,)  # without views: each is pickled with all of its memory

    def rows(self, written: int, index: Tensor) -> list[Tensor]:
        """Return copies ``[n, ...]`` of the rows `index` ``[n]``, which are on the device of the tensors.

        Raises:
            IndexError: If an index is outside ``[0, written)``.
        """
        count = len(index)
        return [view.index_select(0, index).view(count, *row) for view, row in self._written_rows(written)]

    def runs(self, written: int, begin: Tensor, steps: int) -> list[Tensor]:
        """Return copies ``[n * steps, ...]`` of `steps` adjacent rows from each of `begin` ``[n]``.

        Raises:
            IndexError: If a run is outside of the first `written` rows.
        """
        wanted = written, steps, begin.numel()
        known, views = self._runs
        if known != wanted:
            views = self._written_runs(*wanted)
        return [view.index_select(0, begin).view(shape) for view, shape in views]

    def _written_rows(self, written: int) -> list[View]:
        """Return views of the written part, so that torch checks bounds."""
        known, views = self._rows
        if known != written:
            views = [(flat_rows(tensor[:written]), tensor.shape[1:]) for tensor in self._tensors]
            self._rows = (written, views)
        return views

    def _written_runs(self, written: int, steps: int, runs: int) -> list[tuple[Tensor, tuple[int, ...]]]:
        """Overlapping views of all runs of each tensor, and the shape of a sample."""
        if steps > written:
            raise IndexError(f"a run of {steps} rows, and {written} are written")
        views = [
            (_runs_of(tensor, written - steps + 1, steps), (runs * steps, *tensor.shape[1:]))
            for tensor in self._tensors
        ]
        self._runs = (written, steps, runs), views
        return views


def _runs_of(tensor: Tensor, runs: int, steps: int) -> Tensor:
    """View ``[runs, steps, ...]``; a matrix if the tensor is contiguous, so that a run is one piece of memory."""
    if tensor.is_contiguous():
        size = tensor.shape[1:].numel()
        return tensor.as_strided((runs, steps * size), (size, 1))
    stride, *inside = tensor.stride()
    return tensor.as_strided((runs, steps, *tensor.shape[1:]), (stride, stride, *inside))


_FLAGS = (DONE, TERMINATED, TRUNCATED)
_INTEGER = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}
_FEW = 64  # slots that are allocated first
_SAMPLE = 64  # integers of a row that are compared first


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
class NextObsStore:
    """For each row, where its entries under ``next`` are: in the row of the next step, or in a slot of their own.

    A row has a slot if the next step is not stored, or its entries differ by a bit: at the end of an episode and of
    what was written. `write` finds the next step by its content, in the batch itself or in the next batch, so that rows
    may come from any number of environments in any order. Before a row is overwritten, what another row reads from it
    is copied to a slot.

    The first slots are those of the open rows: the last steps of the batch that was written last, whose next steps may
    be in the next batch. They are one piece of memory, which is copied and compared at once.

    Args:
        keys: Entries at the root, and theirs under ``next``.
        roots: Entries at the root ``[capacity, ...]``.
        capacity: Number of rows.
    """

    def __init__(self, keys: Mapping[NestedKey, NestedKey], roots: Mapping[NestedKey, Tensor], capacity: int) -> None:
        self.keys: Final = dict(keys)
        self._roots: Final = dict(roots)
        self._device: Final = next(iter(roots.values())).device
        self._after = np.full(capacity, -1)  # row of the next step, or -1 - slot
        self._before = np.full(capacity, -1)  # row that reads this one
        self._ends: dict[NestedKey, Tensor] = {key: root[:0].clone() for key, root in self._roots.items()}
        self._open = self._after[:0].copy()  # row of each of the first slots, -1 if that row was overwritten
        self._first = 0  # number of slots for open rows
        self._free: list[int] = []  # slots that no row has, apart from those
        self._words: list[Any] = []  # of the slots, see `_words`
        self._gather: RowGather | None = None

    def __contains__(self, key: object) -> bool:
        return key in self.keys.values()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_gather": None, "_words": None}  # another process may have another back end

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._words = [_words(end) for end in self._ends.values()]

    def clear(self) -> None:
        """Forget all rows."""
        self._after.fill(-1)
        self._before.fill(-1)
        self._free = list(range(self._first, self._slots))
        self._open = self._open[:0]

    def read(self, index: Tensor, written: int, keys: Sequence[NestedKey] | None = None) -> Cells:
        """Entries under ``next`` of the rows `index` ``[n]``, of `written` stored ones; those of `keys` if given."""
        after = self._after[index.cpu().numpy()]
        rows = self._tensor(after.clip(min=0))
        if keys is None:
            if self._gather is None:
                self._gather = row_gather(list(self._roots.values()))
            found = dict(zip(self._roots, self._gather.rows(written, rows), strict=True))
        else:
            found = {key: self._roots[key].index_select(0, rows) for key, after in self.keys.items() if after in keys}
        places = (after < 0).nonzero()[0]
        if len(places):
            slots, where = self._tensor(-1 - after[places]), self._tensor(places)
            for key, cell in found.items():
                cell.index_copy_(0, where, self._ends[key].index_select(0, slots))
        return {self.keys[key]: cell for key, cell in found.items()}

    def write(self, rows: Any, cells: Cells, written: int) -> None:
        """Record the entries under ``next`` of a batch, before its other entries are written.

        Args:
            rows: Indices of the rows that are written, an int64 array ``[n]``, all different.
            cells: Batch, on the device of the rows.
            written: Number of rows that were stored before.
        """
        now = [_words(cells[key]) for key in self.keys]  # [n, words]: the entries at the root, as integers
        after = [_words(cells[key]) for key in self.keys.values()]  # [n, words]: those under ``next``
        self._release(rows[rows < written])
        # The batch is cut into runs: within one, what is under ``next`` of a row is the root of the row after it.
        ends = np.ones(len(rows), dtype=bool)
        if len(rows) > 1:
            ends[:-1] = ~_equal([part[:-1] for part in after], [part[1:] for part in now])
        inside, tails, heads = (~ends).nonzero()[0], rows, rows
        if len(inside):
            self._link(rows[inside], rows[inside + 1])
            begins = np.concatenate([ends[-1:], ends[:-1]])  # after an end; the last row always is one
            tails, heads, now = rows[ends], rows[begins], [part[begins] for part in now]
        # The first row of a run may be the next step of a row that the batch before has left open.
        if len(self._open):
            self._close(heads, now)
        kept = self._tensor(ends.nonzero()[0]) if len(inside) else None
        self._reopen(tails, {key: _taken(cells[name], kept) for key, name in self.keys.items()})

    def state(self, written: int) -> dict[str, Any]:
        """Return the successors of `written` rows, as tensors; slots are numbered by their rows."""
        after = self._after[:written].copy()
        rows = (after < 0).nonzero()[0]
        slots = self._tensor(-1 - after[rows])
        after[rows] = -1 - np.arange(len(rows))
        ends = [[key, cell[slots]] for key, cell in self._ends.items()]
        return {"after": self._tensor(after), "ends": ends, "open": self._tensor(self._open[self._open >= 0])}

    @staticmethod
    def check_state(owner: str, state: Any, keys: Mapping[NestedKey, NestedKey], columns: Any, written: int) -> Any:
        """Return the parts of a state: `after`, the slots by key, and `open`.

        Raises:
            CheckpointError: If it is damaged.
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
        self._after[:written] = after.cpu().numpy()
        rows = (self._after[:written] >= 0).nonzero()[0]
        self._before[self._after[rows]] = rows
        self._open = opened.cpu().numpy().copy()
        self._first = len(self._open)
        rows = (self._after[:written] < 0).nonzero()[0]
        rows = np.concatenate([self._open, rows[~np.isin(rows, self._open)]])
        slots = torch.from_numpy(-1 - self._after[rows])
        self._ends = {key: ends[key].cpu()[slots].to(self._device) for key in self.keys}
        self._after[rows] = -1 - np.arange(len(rows))
        self._words = [_words(end) for end in self._ends.values()]
        self._free = []

    @property
    def _slots(self) -> int:
        return len(next(iter(self._ends.values())))

    def _tensor(self, numbers: Any) -> Tensor:
        return torch.from_numpy(numbers).to(self._device)

    def _link(self, rows: Any, nexts: Any) -> None:
        self._after[rows] = nexts
        self._before[nexts] = rows

    def _release(self, rows: Any) -> None:
        """Forget the successors of rows that are about to be overwritten."""
        after = self._after[rows]
        ended = after < 0
        if ended.any():
            slots = -1 - after[ended]
            self._open[slots[slots < self._first]] = -1  # slots of open rows are not reused one by one
            self._free += slots[slots >= self._first].tolist()
            after = after[~ended]
        self._before[after] = -1
        self._after[rows] = -1
        # Rows that stay and read their next entries from overwritten rows get a copy. Overwritten readers were
        # removed from `_before` above.
        readers = self._before[rows]
        read = (readers >= 0).nonzero()[0]
        if len(read):
            overwritten = self._tensor(rows[read])
            self._keep(readers[read], {key: root[overwritten] for key, root in self._roots.items()})
            self._before[rows] = -1

    def _close(self, heads: Any, now: list[Any]) -> None:
        """Let the open rows read from `heads`, the rows that begin a run of steps, where these are their next steps."""
        count = len(self._open)
        ended = [words[:count] for words in self._words]  # [count, words]: what is under ``next`` of the open rows
        if count == len(heads):  # the usual case: as many environments as before, in the same order
            same = _equal(ended, now)
            if same.all() and (self._open >= 0).all():
                self._link(self._open, heads)
                return
            found = np.where(same, np.arange(count), -1)  # [count]: position in `heads` of the next step, or -1
        else:
            found = np.full(count, -1)
        _match(ended, now, found)
        known = (found >= 0) & (self._open >= 0)
        self._link(self._open[known], heads[found[known]])
        left = (~known & (self._open >= 0)).nonzero()[0]
        if len(left):
            slots = self._tensor(left)
            self._keep(self._open[left], {key: end.index_select(0, slots) for key, end in self._ends.items()})

    def _reopen(self, rows: Any, values: Cells) -> None:
        """Copy the entries under ``next`` of `rows` into the first slots."""
        more = len(rows) - self._first
        if more > 0:  # new slots in front: the number of each other slot increases, and -1 - slot decreases
            self._grow(front=more)
            self._after[self._after < 0] -= more
            self._free = [slot + more for slot in self._free]
            self._first += more
        for key, value in values.items():
            self._ends[key][: len(rows)] = value
        self._open = rows
        self._after[rows] = -1 - np.arange(len(rows))

    def _keep(self, rows: Any, values: Mapping[NestedKey, Tensor]) -> None:
        """Copy the entries under ``next`` of `rows` into slots; memory grows by half if none is free."""
        more = len(rows) - len(self._free)
        if more > 0:
            have = self._slots
            more = max(more, have // 2, min(_FEW, len(self._after)))
            self._grow(back=more)
            self._free += range(have, have + more)
        slots = np.array(self._free[len(self._free) - len(rows) :])
        del self._free[len(self._free) - len(rows) :]
        for key, value in values.items():
            self._ends[key][self._tensor(slots)] = value
        self._after[rows] = -1 - slots

    @torch.inference_mode(mode=False)  # else they could not be written outside of that mode
    def _grow(self, front: int = 0, back: int = 0) -> None:
        for key, end in self._ends.items():
            parts = [end.new_empty(front, *end.shape[1:]), end, end.new_empty(back, *end.shape[1:])]
            self._ends[key] = torch.cat(parts)
        self._words = [_words(end) for end in self._ends.values()]


def _taken(cell: Tensor, rows: Tensor | None) -> Tensor:
    return cell if rows is None else cell.index_select(0, rows)


def _words(cell: Tensor) -> Any:
    """`cell` ``[n, ...]`` as integers ``[n, w]``, to compare bits; an array on the CPU, where NumPy is faster."""
    flat = cell.resolve_conj().resolve_neg().contiguous().view(cell.shape[0], -1)
    size = gcd(flat.shape[1] * flat.element_size(), 8)
    if flat.storage_offset() * flat.element_size() % size:
        flat = flat.clone()
    words = flat.view(_INTEGER[size])
    return words.numpy() if words.is_cpu else words


def _equal(one: Sequence[Any], two: Sequence[Any]) -> Any:
    """Which rows are equal in all parts, a bool array ``[n]``."""
    same: Any = True
    for first, second in zip(one, two, strict=True):
        part = (first == second).all(1)
        same &= part.cpu().numpy() if isinstance(part, Tensor) else part
    return same


def _match(ended: list[Any], now: list[Any], found: Any) -> None:
    """Set `found`, where it is -1, to the position of an equal entry of `now`, each at most once."""
    candidates, left = np.ones(now[0].shape[0], dtype=bool), (found < 0).nonzero()[0]
    candidates[found[found >= 0]] = False
    # Rows with the same sample of bytes are candidates, found by a dict; then all words of these pairs are compared.
    free = candidates.nonzero()[0]
    places = dict(zip(_samples(now, free), free.tolist(), strict=True))
    guess = np.array([places.pop(name, -1) for name in _samples(ended, left)])
    left, guess = left[guess >= 0], guess[guess >= 0]
    if len(left):
        same = _equal([part[left] for part in ended], [part[guess] for part in now])
        found[left[same]] = guess[same]


def _samples(parts: list[Any], rows: Any) -> list[bytes]:
    """Return some bytes of each of the `rows`, by which to find rows that may be equal."""
    few = [torch.as_tensor(part[:, :: 1 + part.shape[1] // _SAMPLE][rows]).cpu().numpy() for part in parts]
    return [row.tobytes() for row in np.concatenate([part.view(np.uint8) for part in few], 1)]
