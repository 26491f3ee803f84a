"""Table of the trajectories in a ring of rows, updated at each write."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from rl.replay._indices import IndexSet, Longs, unique
from rl.replay._state import Fields

_SETS = 4  # slice lengths with a cached set of trajectories
_STATE = ("version", "clock", "sections", "lines", "free", "open", "last_id", "sets")
Flags = NDArray[np.bool_]


class TrajectoryTable:
    """Trajectories in a ring of rows, by number: first step, number of steps, distance of its steps.

    The global step g counts rows in the order of writing; row ``g % capacity`` holds it. A batch ``[envs, steps]`` is
    written step by step, so that the environments lie side by side: what one writes has the global steps g,
    ``g + envs``, ``g + 2 * envs``, ... A trajectory is a run of steps of one environment; the oldest steps are
    overwritten first. A flat batch has one environment.

    Args:
        capacity: Number of rows of the ring.

    Example:
        >>> table = TrajectoryTable(8)
        >>> table.write(np.zeros((2, 3), bool), None)  # two environments, three steps
        >>> table.steps[:2].tolist(), table.rows_of(np.array([0, 1]), np.array([[0, 1, 2]])).tolist()
        ([3, 3], [[0, 2, 4], [1, 3, 5]])
        >>> table.write(np.zeros((2, 2), bool), None)  # overwrites a step of each
        >>> table.steps[:2].tolist(), table.rows_of(np.array([0, 1]), np.array([[0, 1, 2, 3]])).tolist()
        ([4, 4], [[2, 4, 6, 0], [3, 5, 7, 1]])
    """

    def __init__(self, capacity: int) -> None:
        self.capacity: Final = capacity
        self.version = 0  # increases when numbers change
        self.clear()

    def clear(self, clock: int = 0) -> None:
        """Remove all trajectories; the next row has the global step `clock`."""
        self.version += 1
        self.clock = clock
        self.sections: list[tuple[int, int]] = []
        """First global step, and environments, of parts that no trajectory crosses."""
        self._number = np.zeros(self.capacity, np.int32)  # trajectory of each row, plus one; 0 if none
        self._used = 0
        self._hold(np.zeros((3, 16), np.int64))
        self._free: list[int] = []
        self._sets: dict[int, IndexSet] = {}
        self._open: Longs = np.zeros(0, np.int64)  # what the next step of each environment continues, or -1
        self._last_id: NDArray[Any] | None = None
        self.changed: Longs = self._open
        """Trajectories whose steps the last write changed, some of them repeated."""

    def __len__(self) -> int:
        return self._used - len(self._free)

    @property
    def rows(self) -> int:
        """Number of rows in the ring."""
        return min(self.clock, self.capacity)

    @property
    def steps(self) -> Longs:
        """Number of steps of each trajectory, int64 ``[n]``; 0 for unused numbers."""
        return self._steps[: self._used]

    def at_least(self, steps: int) -> IndexSet:
        """Trajectories with at least `steps` steps; the first call for a length reads the entire table."""
        found = self._sets.pop(steps, None)
        if found is None:
            found = IndexSet(np.flatnonzero(self.steps >= steps))
            while len(self._sets) >= _SETS:
                del self._sets[next(iter(self._sets))]
        self._sets[steps] = found  # in order of use
        return found

    def by_time(self, numbers: Longs) -> Longs:
        """Trajectories `numbers` in the order in which their oldest steps were written."""
        return numbers[np.argsort(self._first[numbers])]

    def rows_of(self, numbers: Longs, steps: Longs) -> Longs:
        """Rows of `steps` ``[n]`` or ``[n, k]`` of the trajectories `numbers` ``[n]``, int64."""
        first, stride = self._first[numbers] % self.capacity, self._stride[numbers]
        if steps.ndim > 1:
            first, stride = first[:, None], stride[:, None]
        rows = first + stride * steps
        rows -= self.capacity * (rows >= self.capacity)  # a trajectory is no longer than the ring
        return rows

    def are_runs(self, numbers: Longs) -> bool:
        """Return whether steps of all trajectories `numbers` are in adjacent rows."""
        return bool((self._stride[numbers] == 1).all())

    def locate(self, rows: Longs) -> tuple[Longs, Longs]:
        """Trajectory of each of the stored `rows`, and its step there, both int64 ``[n]``."""
        numbers = self._number[rows].astype(np.int64) - 1
        return numbers, (rows - self._first[numbers]) % self.capacity // self._stride[numbers]

    def next_steps(self, clock: int) -> Longs:
        """Global step from `clock` on at which each trajectory has a row, or would have its next one, int64 ``[n]``."""
        first, stride = self._first[: self._used], np.maximum(self._stride[: self._used], 1)
        return first + np.maximum(clock - first + stride - 1, 0) // stride * stride

    def unseen(self, numbers: Longs, seen: Longs, length: int) -> tuple[Longs, Longs]:
        """Slices of `length` steps, one after the other, that trajectories have gained.

        Args:
            numbers: Trajectories, int64 ``[n]``.
            seen: Global step up to which each has been cut into slices, int64 ``[n]``.
            length: Number of steps of a slice.

        Returns:
            Global step of the first row of each slice, int64 ``[k]``, and `seen` after them, int64 ``[n]``.
        """
        stride = self._stride[numbers]
        begin = np.maximum(seen, self._first[numbers])  # older ones are overwritten, or of an earlier trajectory
        counts = (self._first[numbers] + self._steps[numbers] * stride - begin) // (stride * length)
        which, at = each_step(0 * counts, np.maximum(counts, 0))
        return begin[which] + at * (stride * length)[which], begin + np.maximum(counts, 0) * stride * length

    def cut(self, envs: int | None = None) -> None:
        """End all trajectories before the next batch, which has `envs` environments; as many as before if None."""
        envs = (self.sections[-1][1] if self.sections else 1) if envs is None else envs
        if self.sections and self.sections[-1][0] == self.clock:
            del self.sections[-1]
        self.sections.append((self.clock, envs))
        self._open, self._last_id = np.full(envs, -1, np.int64), None

    def write(self, ends: Flags, ids: NDArray[Any] | None) -> None:
        """Append rows after the last one.

        Args:
            ends: Last step of a trajectory, bool ``[envs, steps]``, at most `capacity`.
            ids: Trajectory ids, same shape; a trajectory begins where they change. None without ids.
        """
        envs, steps = ends.shape
        shortened = self._trim(ends.size)
        if not self.sections or self.sections[-1][1] != envs:
            self.cut(envs)
        # A trajectory begins where none is open, after the end of another one, and where the id changes.
        begins = np.empty((envs, steps), np.bool_)
        begins[:, 0] = self._open < 0
        begins[:, 1:] = ends[:, :-1]
        if ids is not None:
            begins[:, 1:] |= ids[:, 1:] != ids[:, :-1]
            if self._last_id is not None:
                begins[:, 0] |= ids[:, 0] != self._last_id
        if np.count_nonzero(begins):  # takes a fifth of the time of `begins.any()`
            fresh = begins.copy()
            begins[:, 0] = True  # the batch is cut into runs of one trajectory: also where an open one continues
            at = begins.ravel().nonzero()[0]  # [runs]: position of their first steps, environment by environment
            new = fresh.ravel()[at]
            env, step = np.divmod(at, steps)
            numbers = self._open[env]  # [runs]: trajectory of each; new ones get a number of their own
            numbers[new] = taken = self._take(int(np.count_nonzero(new)))
            self._first[taken] = self.clock + (step * envs + env)[new]  # rows of a step are adjacent in the ring
            self._stride[taken] = envs
            lengths = np.concatenate((at[1:], [ends.size])) - at
            each = numbers.repeat(lengths).reshape(envs, steps).T  # [steps, envs]: trajectory of each row
        else:  # the common case: every environment continues its trajectory
            numbers, lengths = self._open, steps
            each = np.empty((steps, envs), np.int64)
            each[:] = numbers
        self._steps[numbers] += lengths
        self._number[self._places(ends.size)] = each.ravel() + 1
        self._open = each[-1].copy()
        self._open[ends[:, -1]] = -1
        self._last_id = None if ids is None else ids[:, -1].copy()
        self.clock += ends.size
        self.changed = np.concatenate((shortened, numbers))
        for least, kept in self._sets.items():
            kept.update(self.changed, self._steps[self.changed] >= least)

    def replace(self, lines: Longs, clock: int) -> None:
        """Replace all trajectories; the next batch continues none of them.

        Args:
            lines: Global step of the first step, number of steps, and their distance, of each trajectory; int64
                ``[3, n]``. Each row of the ring is a step of one of them.
            clock: Global step of the next row.
        """
        self.clear(clock)
        self._used = lines.shape[1]
        self._hold(lines)
        numbers, step = each_step(0 * self.steps, self.steps)
        self._number[self.rows_of(numbers, step)] = numbers + 1

    def state(self) -> dict[str, Any]:
        """Copy of the table as tensors and plain containers."""
        last = self._last_id
        return {
            "version": self.version,
            "clock": self.clock,
            "sections": [number for section in self.sections for number in section],
            "lines": torch.from_numpy(self._lines[:, : self._used].copy()),
            "free": torch.tensor(self._free, dtype=torch.int64, device="cpu"),
            "open": torch.from_numpy(self._open.copy()),
            "last_id": None if last is None else torch.from_numpy(last.copy()),
            "sets": [[least, torch.from_numpy(kept.members.copy())] for least, kept in self._sets.items()],
        }

    @classmethod
    def from_state(cls, owner: str, capacity: int, state: Any) -> TrajectoryTable:
        """Return the table of a `state`.

        Raises:
            CheckpointError: If `state` is damaged: every row of the ring must be one step of one trajectory.
        """
        fields = Fields(owner, state, _STATE)
        table = cls(capacity)
        lines = fields.tensor("lines", torch.int64, 2).numpy().copy()
        first, steps, stride = lines
        clock, used = fields.integer("clock"), len(steps)
        last, rows = first + (steps - 1) * stride, min(clock, capacity)
        free, alive = fields.indices("free", high=used).numpy(), steps > 0
        stored = (steps >= 0) & (~alive | ((stride > 0) & (first >= clock - rows) & (last < clock)))
        if stored.all() and steps.sum() == rows:
            table.replace(lines, clock)
        if np.count_nonzero(table._number) < rows or not np.array_equal(np.sort(free), np.flatnonzero(~alive)):
            fields.fail(f"its trajectories are not the steps of {rows} rows")
        table.version, table._free = fields.integer("version"), free.tolist()
        sections = fields.integers("sections", low=0, high=max(clock, capacity))
        table.sections = list(zip(sections[::2], sections[1::2], strict=True))
        table._open = fields.indices("open", low=-1, high=used).numpy().copy()
        envs = table.sections[-1][1] if table.sections else 0
        if 0 in sections[1::2] or len(table._open) != envs or not alive[table._open[table._open >= 0]].all():
            fields.fail("an open trajectory has no steps, or there is not one for each environment")
        if fields["last_id"] is not None:
            table._last_id = fields.tensor("last_id", None, 1).numpy().copy()
            if len(table._last_id) != envs:
                fields.fail("last_id and open differ in length")
        for least, kept in fields.items("sets"):
            members = Fields(owner, {"sets": kept}, ("sets",)).indices("sets", high=used).numpy().copy()
            if (
                type(least) is not int
                or least in table._sets
                or not np.array_equal(np.sort(members), np.flatnonzero(steps >= max(least, 1)))
            ):
                fields.fail(f"the set of trajectories with {least} steps has other members")
            table._sets[least] = IndexSet(members)
        return table

    def _trim(self, count: int) -> Longs:
        """Remove the steps that the next `count` rows overwrite; returns the trajectories that they are of."""
        limit = self.clock + count - self.capacity  # oldest global step that stays
        if limit <= 0:
            return self._open[:0]
        labels = self._number[self._places(count)]  # [count]: trajectory plus one, 0 for a row without one
        envs = self.sections[0][1] if self.sections else 1
        # Only the trajectories of these rows get shorter. Mostly a row is of the same trajectory as the row `envs`
        # before it, of the same environment: without those, `unique` sorts few labels.
        if count > envs:
            others = labels[envs:][labels[envs:] != labels[:-envs]]
            labels = np.concatenate((labels[:envs], others))
        numbers = unique(labels[labels > 0].astype(np.int64) - 1)
        first, steps, stride = self._first[numbers], self._steps[numbers], self._stride[numbers]
        # Step k of a trajectory has the global step first + k * stride, and is removed if that is below the limit:
        # ceil((limit - first) / stride) steps are.
        gone = np.minimum((limit - first + stride - 1) // stride, steps)
        self._first[numbers] = first + gone * stride
        self._steps[numbers] = steps = steps - gone
        if np.count_nonzero(steps) < len(steps):
            self._free += numbers[steps == 0].tolist()
            # An index of -1 reads the last trajectory, and then writes the -1 that is there already.
            self._open[self._steps[self._open] == 0] = -1
        while len(self.sections) > 1 and self.sections[1][0] <= limit:
            del self.sections[0]
        return numbers

    def _places(self, count: int) -> slice | Longs:
        """Return the next `count` rows."""
        begin = self.clock % self.capacity
        if begin + count <= self.capacity:
            return slice(begin, begin + count)
        return np.arange(begin, begin + count) % self.capacity

    def _hold(self, lines: Longs) -> None:
        self._lines = lines
        self._first, self._steps, self._stride = lines

    def _take(self, count: int) -> Longs:
        """Reserve `count` unused numbers."""
        again = len(self._free) - min(count, len(self._free))
        old, self._free = self._free[again:], self._free[:again]
        fresh = count - len(old)
        if self._used + fresh > len(self._steps):
            grown = np.zeros((3, 2 * (self._used + fresh)), np.int64)
            grown[:, : self._used] = self._lines[:, : self._used]
            self._hold(grown)
        self._used += fresh
        return np.concatenate([np.array(old, np.int64), np.arange(self._used - fresh, self._used)])


def each_step(low: Longs, high: Longs) -> tuple[Longs, Longs]:
    """All steps from `low` ``[n]`` to before `high` ``[n]``, one range after the other, and the range of each.

    Example:
        >>> [found.tolist() for found in each_step(np.array([5, 0]), np.array([7, 3]))]
        [[0, 0, 1, 1, 1], [5, 6, 0, 1, 2]]
    """
    counts = high - low
    which = np.arange(len(counts)).repeat(counts)
    # cumsum - counts is the position of the first step of each range
    return which, np.arange(len(which)) - (counts.cumsum() - counts - low)[which]


class NewSlices:
    """Queue of the slices that trajectories have gained: each step is in one slice of it at most, the oldest first.

    Args:
        owner: Component that messages name.
        length: Number of steps of a slice.
    """

    def __init__(self, owner: str, length: int) -> None:
        self._owner: Final = owner
        self.length: Final = length
        self.clear()

    def clear(self) -> None:
        """Forget all slices."""
        self._version = -1  # of the table that the rest is for
        self._waiting = self._seen = np.zeros(0, np.int64)  # first global steps of slices; see `TrajectoryTable.unseen`

    def follow(self, table: TrajectoryTable, rows: int) -> None:
        """Add the slices that the last write, of `rows` rows, has completed."""
        if table.version != self._version:  # numbers have changed: what was written before is not new
            self.clear()
            self._version, self._seen = table.version, table.next_steps(table.clock - rows)
        if table.steps.size > len(self._seen):
            self._seen = np.append(self._seen, np.zeros(2 * table.steps.size - len(self._seen), np.int64))
        numbers = unique(table.changed)
        begin, self._seen[numbers] = table.unseen(numbers, self._seen[numbers], self.length)
        if len(begin):
            self._waiting = np.append(self._waiting, np.sort(begin))

    def take(self, table: TrajectoryTable, count: int) -> Longs:
        """Remove up to `count` slices that are still stored, and return their first rows, int64 ``[n]``."""
        if table.version != self._version:
            return self._waiting[:0]
        stored = self._waiting[self._waiting >= table.clock - table.rows]
        taken, self._waiting = stored[:count], stored[count:]
        return taken % table.capacity

    def state(self) -> dict[str, Any]:
        """Copy of the queue as tensors and plain containers."""
        return {
            "length": self.length,
            "version": self._version,
            "waiting": torch.from_numpy(self._waiting.copy()),
            "seen": torch.from_numpy(self._seen.copy()),
        }

    def load(self, state: Any) -> None:
        """Continue from `state`.

        Raises:
            CheckpointError: If it is damaged, or of slices of another length.
        """
        fields = Fields(self._owner, state, ("length", "version", "waiting", "seen"))
        fields.match(length=self.length)
        version = fields.integer("version", low=-1)
        self._waiting, self._seen = (fields.tensor(name, torch.int64, 1).numpy().copy() for name in ("waiting", "seen"))
        self._version = version
