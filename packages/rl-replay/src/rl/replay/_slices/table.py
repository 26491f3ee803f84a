"""Table of the trajectories in a ring of rows, updated at each write."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from rl.replay._index_set import IndexSet, Longs
from rl.replay._state import Fields

__all__ = ["BASE", "ENDLESS", "FROM", "ROW", "STRIDE", "TO", "SegmentTable"]

BASE, FROM, TO, ROW, STRIDE = range(5)
"""Columns of a line. Step u, ``FROM <= u < TO``, has the global step ``BASE + u // ROW * STRIDE + u % ROW``.

In flat batches ``FROM`` is 0, and ``BASE`` is the global step of the oldest stored step.
"""

ENDLESS: Final = 1 << 60
"""``ROW`` and ``STRIDE`` of flat batches, which have one environment."""

_SETS = 4  # slice lengths with a cached set of lines
_FEW = 16  # up to this many lines a Python loop is faster than NumPy
Flags = NDArray[np.bool_]


_STATE = ("version", "clock", "plain", "cuts", "lines", "free", "open", "last_id", "shapes", "sets")


class SegmentTable:
    """Trajectories in a ring of rows, a line of five integers each.

    The global step g counts rows in the order of writing; row ``g % capacity`` holds it. A batch ``[envs, steps]``
    is written one environment after the other, and continues the trajectories of the batch before if that had the same
    shape. A trajectory is a run of steps of one environment; the oldest steps are overwritten first.

    Args:
        capacity: rows of the ring.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity: Final = capacity
        self.version = 0  # increases when line numbers change
        self.clear()

    def clear(self) -> None:
        """Remove all trajectories."""
        self.version += 1
        self._line = np.zeros(self.capacity, np.int32)  # of the step in each row, plus one; 0 if none
        self._lines = np.zeros((16, 5), np.int64)
        self._used = 0
        self._free: list[int] = []
        self._sets: dict[int, IndexSet] = {}
        self.clock = 0  # global step of the next row
        self.plain = True  # all batches were flat
        self.cuts: list[int] = []  # global steps that begin a trajectory whatever the flags
        self._shapes: list[tuple[int, int, int]] = []  # of batches: first global step, environments, steps
        self._open: Longs = np.full(1, -1, np.int64)  # line that the next step of each environment continues
        self._last_id: NDArray[Any] | None = None

    def __len__(self) -> int:
        return self._used - len(self._free)

    @property
    def rows(self) -> int:
        """Number of rows in the ring."""
        return min(self.clock, self.capacity)

    @property
    def lines(self) -> Longs:
        """All lines, int64 ``[n, 5]``; unused ones have no steps."""
        return self._lines

    def lengths(self) -> Longs:
        """Number of steps of each trajectory, int64 ``[n]``."""
        lengths = self._lines[: self._used, TO] - self._lines[: self._used, FROM]
        return lengths[lengths > 0]

    def at_least(self, steps: int) -> IndexSet:
        """Lines of trajectories with at least `steps` steps; the first call for a length reads the whole table."""
        found = self._sets.pop(steps, None)
        if found is None:
            found = IndexSet(steps)
            lengths = self._lines[: self._used, TO] - self._lines[: self._used, FROM]
            found.replace(np.flatnonzero(lengths >= steps))
            while len(self._sets) >= _SETS:
                del self._sets[next(iter(self._sets))]
        self._sets[steps] = found  # in order of use
        return found

    def by_time(self, lines: Longs) -> Longs:
        """`lines` in the order in which their oldest steps were written."""
        return lines[np.argsort(self._oldest(lines))]

    def line_of(self, rows: Longs) -> Longs:
        """Line of each of `rows`, int64 ``[n]``; -1 for rows that are not stored."""
        return self._line[rows].astype(np.int64) - 1

    def locate(self, rows: Longs) -> tuple[Longs, Longs]:
        """Line of each of the stored `rows`, and its step there, both int64 ``[n]``."""
        line = self.line_of(rows)
        base, _, _, row, stride = self._lines[line].T
        ahead = self.clock - 1 - (self.clock - 1 - rows) % self.capacity - base
        return line, ahead // stride * row + ahead % stride

    def cut(self) -> None:
        """End all trajectories before the next batch."""
        self._open.fill(-1)
        self.cuts.append(self.clock)

    def follow(self, number: int) -> None:
        """Set the global step of the next row; only before the first write."""
        self.clock = number

    def write(self, ends: Flags, ids: NDArray[Any] | None, *, flat: bool) -> None:
        """Append rows after the last one.

        Args:
            ends: last step of a trajectory, bool ``[envs, steps]``.
            ids: trajectory ids, same shape; a trajectory begins where they change. None without ids.
            flat: the batch has one dimension of rows; then there is one environment.
        """
        envs, steps = ends.shape
        self._drop(ends.size)
        going = self._continues(envs, ENDLESS if flat else steps, ids)
        if flat:
            self._write_flat(ends[0], None if ids is None else ids[0], going=bool(going[0]))
            return
        begins = np.empty((envs, steps), np.bool_)
        begins[:, 0] = True
        begins[:, 1:] = ends[:, :-1] if ids is None else ends[:, :-1] | (ids[:, 1:] != ids[:, :-1])
        at = np.flatnonzero(begins)
        env, step = at // steps, at % steps
        lengths = np.diff(at, append=ends.size)
        old = going[env] & (step == 0)
        line = np.empty(at.size, np.int64)
        line[old] = self._open[env[old]]
        self._lines[line[old], TO] += lengths[old]
        new = ~old
        line[new] = self._take(int(new.sum()))
        self._fill(line[new], env[new] * steps + self.clock, lengths[new], (step[new], steps, ends.size))
        self._label(line.repeat(lengths), ends.size)
        self._open = np.where(ends[:, -1], -1, line[begins.sum(1).cumsum() - 1])
        self._last_id = None if ids is None else ids[:, -1].copy()
        self.clock += ends.size
        self._sort(line)

    def batches(self) -> Iterator[tuple[int, int, int]]:
        """First global step, environments and steps of each batch ``[envs, steps]`` with stored rows, oldest first."""
        oldest = self.clock - self.rows
        for (start, envs, steps), (stop, _, _) in pairwise([*self._shapes, (self.clock, 0, 0)]):
            size = envs * steps
            begin = start + max(oldest - start, 0) // size * size
            yield from ((number, envs, steps) for number in range(begin, stop, size))

    def state(self) -> dict[str, Any]:
        """Copy of the table as tensors and plain containers."""
        last = self._last_id
        return {
            "version": self.version,
            "clock": self.clock,
            "plain": self.plain,
            "cuts": list(self.cuts),
            "lines": torch.from_numpy(self._lines[: self._used].copy()),
            "free": torch.tensor(self._free, dtype=torch.int64, device="cpu"),
            "open": torch.from_numpy(self._open.copy()),
            "last_id": None if last is None else torch.from_numpy(last.copy()),
            "shapes": [list(shape) for shape in self._shapes],
            "sets": [[kept.least, torch.from_numpy(kept.members[: len(kept)].copy())] for kept in self._sets.values()],
        }

    @classmethod
    def from_state(cls, owner: str, capacity: int, state: Any) -> SegmentTable:
        """The table of a `state`.

        Raises:
            CheckpointError: if `state` is damaged: every row of the ring must be one step of one line.
        """
        fields = Fields(owner, state, _STATE)
        table = cls(capacity)
        table.version, table.clock = fields.integer("version"), fields.integer("clock")
        table.plain, table.cuts = fields.flag("plain"), fields.integers("cuts", low=0, high=table.clock)
        lines = fields.tensor("lines", torch.int64, 2).numpy().copy()
        used = table._used = len(lines)
        if table.plain:  # states of version 0.2.0 count steps from the first one of a trajectory, even if overwritten
            lines[:, BASE] += lines[:, FROM]
            lines[:, TO] -= lines[:, FROM]
            lines[:, FROM] = 0
        table._reserve(used)
        table._lines[:used] = lines
        lengths = lines[:, TO] - lines[:, FROM]
        alive = np.flatnonzero(lengths)
        free = fields.indices("free", high=used).numpy()
        if not np.array_equal(np.sort(free), np.flatnonzero(lengths == 0)):
            fields.fail("free lines and those without steps differ")
        table._free = free.tolist()
        steps = _steps_of(lines[alive], table.rows)
        if table.plain and (lines[:, ROW:] != ENDLESS).any():
            fields.fail("a line of batches without environments has their number of steps")
        if steps is None or not np.array_equal(np.sort(steps), np.arange(table.clock - table.rows, table.clock)):
            fields.fail(f"its lines are not the steps of {table.rows} rows")
        table._open = fields.indices("open", low=-1, high=used).numpy().copy()
        if not np.isin(table._open[table._open >= 0], alive).all():
            fields.fail("an open line has no steps")
        if fields["last_id"] is not None:
            table._last_id = fields.tensor("last_id", None, 1).numpy().copy()
            if len(table._last_id) != len(table._open):
                fields.fail("last_id and open differ in length")
        table._shapes = [_shape_of(shape, table.clock) for shape in fields.items("shapes")]
        for pair in fields.items("sets"):
            kept = Fields(owner, dict(zip(("least", "members"), pair, strict=True)), ("least", "members"))
            least, members = kept.integer("least", low=1), kept.indices("members", high=used).numpy()
            if least in table._sets or not np.array_equal(np.sort(members), np.flatnonzero(lengths >= least)):
                fields.fail(f"the set of lines with {least} steps has other members")
            table._sets[least] = IndexSet(least)
            table._sets[least].replace(members)
        table._line[steps % capacity] = alive.repeat(lengths[alive]) + 1
        return table

    def _continues(self, envs: int, steps: int, ids: NDArray[Any] | None) -> Flags:
        """Which environments continue the trajectory of the batch before, bool ``[envs]``."""
        if steps == ENDLESS:
            envs_before = (1, ENDLESS)
        else:
            self.plain = False
            while len(self._shapes) > 1 and self._shapes[1][0] <= self.clock - self.capacity:
                del self._shapes[0]
            envs_before = self._shapes[-1][1:] if self._shapes else (0, 0)
            if envs_before != (envs, steps):
                self._shapes.append((self.clock, envs, steps))
        if envs_before != (envs, steps):
            return np.zeros(envs, np.bool_)
        going = self._open >= 0
        return going if ids is None or self._last_id is None else going & (self._last_id == ids[:, 0])

    def _drop(self, count: int) -> None:
        """Remove the steps that the next `count` rows overwrite; each is the oldest one of its line by then."""
        limit = self.clock + count - self.capacity
        if limit <= 0:
            return
        begin = self.clock % self.capacity
        lines = self._line[begin : begin + count]
        if begin + count > self.capacity:
            lines = np.concatenate((lines, self._line[: begin + count - self.capacity]))
        lines = lines[(lines != np.append(lines[1:], 0)) & (lines > 0)].astype(np.int64) - 1  # once for adjacent rows
        if lines.size <= _FEW:
            for line in dict.fromkeys(lines.tolist()):
                self._shorten(line, limit)
            return
        if self.plain:  # in the order of writing: all but the last one are removed entirely
            gone, last = lines[:-1], int(lines[-1])
            self._lines[gone, FROM] = self._lines[gone, TO]
            for kept in self._sets.values():
                kept.discard(gone)
            self._free += gone.tolist()
            self._shorten(last, limit)
            return
        lines = np.unique(lines)
        base, _, to, row, stride = self._lines[lines].T
        past = limit - base
        self._lines[lines, FROM] = start = np.minimum(past // stride * row + np.minimum(past % stride, row), to)
        gone = lines[start >= to]
        self._sort(lines)
        if gone.size:
            self._open[np.isin(self._open, gone)] = -1
            self._free += gone.tolist()

    def _shorten(self, line: int, limit: int) -> None:
        """Remove the steps of one line before global step `limit`."""
        base, _, to, row, stride = self._lines[line].tolist()
        past = limit - base
        start = min(past // stride * row + min(past % stride, row), to)
        if self.plain:
            self._lines[line, BASE], self._lines[line, TO] = base + start, to - start
        else:
            self._lines[line, FROM] = start
        for kept in self._sets.values():
            kept.update_one(line, inside=to - start >= kept.least)
        if start >= to:
            self._open[self._open == line] = -1
            self._free.append(line)

    def _write_flat(self, ends: Flags, ids: NDArray[Any] | None, *, going: bool) -> None:
        """Write a flat batch."""
        count = ends.size
        begins = ends[:-1] if ids is None else ends[:-1] | (ids[1:] != ids[:-1])
        begin = begins.nonzero()[0] + 1  # trajectories end before these steps
        line = self._lengthen(0, int(begin[0]) if begin.size else count, going=going)
        if not begin.size:
            self._label(line, count)
        else:
            bounds = [*begin.tolist(), count]
            if begin.size < _FEW:
                lines: Any = [self._lengthen(*pair, going=False) for pair in pairwise(bounds)]
            else:
                lines = self._append(begin, count)
            self._label(np.repeat([line, *lines], np.diff(bounds, prepend=0)), count)
            line = int(lines[-1])
        self._open[0] = -1 if ends[-1] else line
        self._last_id = None if ids is None else ids[-1:].copy()
        self.clock += count

    def _lengthen(self, begin: int, end: int, *, going: bool) -> int:
        """Add rows `begin` to `end` of a flat batch to the open line, or to a new one; returns the line."""
        if going:
            line = int(self._open[0])
            _, start, to, _, _ = self._lines[line].tolist()
            self._lines[line, TO] = to + end
            steps = to + end - start
        else:
            line = self._free.pop() if self._free else int(self._take(1)[0])
            self._lines[line] = (self.clock + begin, 0, end - begin, ENDLESS, ENDLESS)
            steps = end - begin
        for kept in self._sets.values():
            kept.update_one(line, inside=steps >= kept.least)
        return line

    def _append(self, begins: Longs, count: int) -> Longs:
        """New lines of a flat batch, one from each of `begins`, the last one up to `count`."""
        lines, lengths = self._take(begins.size), np.diff(begins, append=count)
        self._fill(lines, begins + self.clock, lengths, (0, ENDLESS, ENDLESS))
        for kept in self._sets.values():
            kept.update(lines, lengths >= kept.least)
        return lines

    def _label(self, lines: Longs | int, count: int) -> None:
        """Record the lines of the next `count` rows, one for all or int64 ``[count]``."""
        begin = self.clock % self.capacity
        fits = self.capacity - begin
        if count <= fits:
            self._line[begin : begin + count] = lines + 1
        else:
            labels = np.broadcast_to(lines + 1, count)
            self._line[begin:], self._line[: count - fits] = labels[:fits], labels[fits:]

    def _oldest(self, lines: Longs) -> Longs:
        """Global steps of the oldest steps of `lines`."""
        base, start, _, row, stride = self._lines[lines].T
        return base + start // row * stride + start % row

    def _fill(self, lines: Longs, base: Longs, lengths: Longs, row: tuple[Longs | int, int, int]) -> None:
        start, steps, stride = row
        self._lines[lines, BASE] = base
        self._lines[lines, FROM] = start
        self._lines[lines, TO] = start + lengths
        self._lines[lines, ROW] = steps
        self._lines[lines, STRIDE] = stride

    def _sort(self, lines: Longs) -> None:
        """Update the cached sets for `lines`, all different."""
        if self._sets:
            lengths = self._lines[lines, TO] - self._lines[lines, FROM]
            for kept in self._sets.values():
                kept.update(lines, lengths >= kept.least)

    def _take(self, count: int) -> Longs:
        """Reserve `count` unused lines."""
        again = min(count, len(self._free))
        old = self._free[len(self._free) - again :]
        del self._free[len(self._free) - again :]
        fresh = count - again
        self._reserve(self._used + fresh)
        self._used += fresh
        return np.concatenate([np.array(old, np.int64), np.arange(self._used - fresh, self._used)])

    def _reserve(self, size: int) -> None:
        if size > len(self._lines):
            grown = np.zeros((2 * size, 5), np.int64)
            grown[: len(self._lines)] = self._lines
            self._lines = grown


def _steps_of(lines: Longs, rows: int) -> Longs | None:
    """Global step of each step of `lines`, int64 ``[rows]``; None if there are more or fewer, or a column is wrong."""
    base, start, to, row, stride = lines.T
    lengths = to - start
    if lines.size and (min(start.min(), lengths.min(), row.min() - 1) < 0 or (stride < row).any()):
        return None
    if lengths.max(initial=0) > rows or lengths.sum() != rows:
        return None
    first = start - lengths.cumsum() + lengths
    steps = np.repeat(first, lengths) + np.arange(lengths.sum())
    row, stride = row.repeat(lengths), stride.repeat(lengths)
    return base.repeat(lengths) + steps // row * stride + steps % row


def _shape_of(shape: Any, clock: int) -> tuple[int, int, int]:
    start, envs, steps = shape
    if any(type(number) is not int for number in shape) or not 0 <= start <= clock or min(envs, steps) < 1:
        raise ValueError(f"no shape of batches: {shape}")
    return start, envs, steps
