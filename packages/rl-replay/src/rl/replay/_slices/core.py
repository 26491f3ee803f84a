"""What both samplers of slices have in common: arguments, the table of trajectories, and how rows come of lines."""

from __future__ import annotations

from typing import Any, Final, final

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.errors import ContractError
from rl.core.interfaces import Storage
from rl.core.keys import INDEX, NestedKey
from rl.replay._slices.borders import Borders
from rl.replay._slices.draw import Steps, place_slices, slice_rows, whole_rows
from rl.replay._slices.index_set import DenseSet, Longs
from rl.replay._slices.marks import Drawn, SliceMarks
from rl.replay._slices.options import SliceOptions
from rl.replay._slices.table import SegmentTable
from rl.replay._slices.tracker import Trajectories
from rl.replay._state import Apply
from rl.replay.samplers._random import refuse_empty
from rl.replay.storages._rows import TensorRows

__all__ = ["DRAWN", "SliceCore"]

DRAWN = "slices"
"""Under which the info of a draw has what it knows about its slices until their rows are marked."""


class SliceCore:
    """Slices of trajectories that somebody else chose.

    Args:
        who: for messages.
        options: how long slices are.
        end_key: see `rl.replay._slices.end_flags.Boundaries`.
        traj_key: likewise.
        truncated_key: see `SliceMarks`.
        init_key: likewise.

    Raises:
        ContractError: if a key is none.
    """

    def __init__(
        self,
        who: str,
        options: SliceOptions,
        *,
        end_key: NestedKey | None,
        traj_key: NestedKey | None,
        truncated_key: NestedKey | None,
        init_key: NestedKey | None,
    ) -> None:
        keys = {"end_key": end_key, "traj_key": traj_key, "truncated_key": truncated_key, "init_key": init_key}
        for name, key in keys.items():
            parts: Any = (key,) if isinstance(key, str) else key
            if key is not None and not (
                isinstance(parts, (tuple, list)) and parts and all(isinstance(part, str) for part in parts)
            ):
                raise ContractError(f"{who}: {name} is a string or a tuple of strings, got {key!r}")
        self._who: Final = who
        self._numbers: Final = Numbers()
        self._alike = True  # whether the slices of the last draw all had as many steps; that decides who computes
        self.options: Final = options
        self.trajectories: Final = Trajectories(who, end_key, traj_key)
        borders = Borders(who, self.trajectories.names, (truncated_key, init_key))
        self.marks: Final = SliceMarks(truncated_key, init_key, borders, pad=options.pad)

    def able(self, storage: Storage, length: int) -> tuple[SegmentTable, DenseSet]:
        """The table, and the lines of the trajectories that slices of `length` may be drawn from.

        Raises:
            ContractError: if there are none.
        """
        table = self.trajectories.of(storage)
        able = table.at_least(length if self.options.strict else 1)
        if not len(able):
            self.options.refuse_short(length, table.lengths())
        return table, able

    def split(self, storage: Storage, batch_size: int) -> tuple[int, int]:
        """Number of slices, and steps of each.

        Raises:
            ContractError: if the storage is empty, or `batch_size` cannot be divided so.
        """
        if batch_size < 1 or not len(storage):
            refuse_empty(self._who, storage, batch_size)
        return self.options.split(batch_size)

    def draw(
        self,
        storage: Storage,
        table: SegmentTable,
        able: DenseSet | Longs,
        count: int,
        length: int,
        generator: torch.Generator | None,
    ) -> tuple[Tensor, dict[Any, Any]]:
        """Slices, each uniform in its trajectory.

        Args:
            storage: of the rows.
            table: of the trajectories.
            able: lines of which each slice takes one at random; or an array ``[count]``, one for each.
            count: how many slices.
            length: of a slice.
            generator: source of randomness.
        """
        options = self.options
        self._numbers.fill(count, len(able) if isinstance(able, DenseSet) else None, generator)
        steps: Steps | None = None
        if options.whole and table.plain:
            rows, begin = self._whole(storage, table, able, length)
        elif table.plain and self._alike and not any(options.span(length)):
            rows, begin, steps, length = self._as_long_as_they_are(table, able, length)
        else:
            rows, begin, steps = self._cut(table, able, length)
        index = rows.view(count, length) if options.pad else rows
        return index, {DRAWN: Drawn(count, length, steps, begin)}

    def gather(self, storage: Storage, index: Tensor, info: dict[Any, Any]) -> Any:
        """The rows of a draw: with their flags, as a TensorDict, where the storage has nothing but tensors."""
        data = self.marks.gather(storage, index, info[DRAWN], indexed=INDEX in info)
        return storage.get(index) if data is None else data

    def empty(self) -> None:
        """Forget all trajectories."""
        self.trajectories.empty()
        self.marks.borders.forget()

    def prepare_load(self, state: Any, rows: int | None, max_size: int | None) -> Apply:
        """As `Trajectories.prepare_load`; other rows are checked for borders again."""
        load = self.trajectories.prepare_load(state, rows, max_size)

        def apply() -> None:
            load()
            self.marks.borders.forget()

        return apply

    def mark(self, data: TensorDictBase, info: dict[Any, Any]) -> None:
        """Write the flags of a draw into its rows and its info."""
        info.update(self.marks.of_data(data, info[INDEX], info.pop(DRAWN)))

    def _whole(
        self, storage: Storage, table: SegmentTable, able: DenseSet | Longs, length: int
    ) -> tuple[Tensor, Tensor | None]:
        """Rows of slices whose steps all lie side by side, and where those of each begin."""
        where, *which = self._numbers.tensors
        given = able.tensor if isinstance(able, DenseSet) else torch.from_numpy(able)
        slices = storage.slices if isinstance(storage, TensorRows) else None
        if slices is not None:
            found = slices(table.tensor, given, where, which[0] if which else None, length, table.capacity, table.rows)
            if found is not None:
                return found
        chosen = given.index_select(0, which[0].long()) if which else given
        oldest, have = table.runs
        oldest, have = oldest.index_select(0, chosen), have.index_select(0, chosen)
        return whole_rows(oldest, have, where, length, table.capacity, wraps=table.clock > table.capacity)

    def _as_long_as_they_are(
        self, table: SegmentTable, able: DenseSet | Longs, length: int
    ) -> tuple[Tensor, Tensor | None, Steps | None, int]:
        """As `_cut`, of a plain table without a span; and how many steps the longest slice has.

        Slices that all have as many, as those of episodes of one length, are whole ones, and as quick.
        """
        where, *which = self._numbers.tensors
        given = able.tensor if isinstance(able, DenseSet) else torch.from_numpy(able)
        chosen = given.index_select(0, which[0].long()) if which else given
        oldest, have = table.runs
        have = have.index_select(0, chosen)
        lengths = have.tolist()
        least = min(lengths)
        if least < length and (self.options.pad or least < max(lengths)):
            self._alike = False
            return *self._cut(table, chosen.numpy(), length), length
        length = min(least, length)
        wraps = table.clock > table.capacity
        rows, begin = whole_rows(oldest.index_select(0, chosen), have, where, length, table.capacity, wraps=wraps)
        return rows, begin, None, length

    def _cut(
        self, table: SegmentTable, able: DenseSet | Longs, length: int
    ) -> tuple[Tensor, Tensor | None, Steps | None]:
        """Rows of slices that may be shorter; where those of each begin, if none is; how many steps each has."""
        options = self.options
        where, *which = self._numbers.arrays
        chosen = able.members.take(which[0].astype(np.int64)) if isinstance(able, DenseSet) else able
        lines = table.lines.take(chosen, 0)
        first, steps = place_slices(lines, where, length, options.span(length), whole=options.whole)
        lengths = [length] if steps is None else steps.each.tolist()
        self._alike = min(lengths) == length or (not options.pad and min(lengths) == max(lengths))
        wraps = table.clock > table.capacity
        rows, begin = slice_rows(
            lines, first, steps, length, table.capacity, plain=table.plain, wraps=wraps, pad=options.pad
        )
        return torch.from_numpy(rows), None if begin is None else torch.from_numpy(begin), steps

    def __repr__(self) -> str:
        return f"{self._who}({self.options}, {self.trajectories})"


@final
class Numbers:
    """Random numbers in memory that serves again and again, since making a tensor takes longer than filling it.

    Example:
        >>> numbers, generator = Numbers(), torch.Generator().manual_seed(0)
        >>> numbers.fill(3, 10, generator)
        >>> expected = torch.rand(2, 3, dtype=torch.float64, generator=generator.manual_seed(0))
        >>> bool((torch.stack(numbers.tensors) == expected * torch.tensor([[1], [10]])).all())
        True
    """

    def __init__(self) -> None:
        self._hold(0, 0)

    def __reduce__(self) -> tuple[type[Numbers], tuple[()]]:
        return Numbers, ()  # a copy has memory of its own

    def fill(self, count: int, choices: int | None, generator: torch.Generator | None) -> None:
        """Draw `count` numbers, uniform in [0, 1), and as many in [0, `choices`), unless that is None.

        They are multiples of 2^-53, as `torch.rand` draws them, times `choices`: no product is rounded up to that.
        """
        rows = 1 if choices is None else 2
        if self._memory.shape != (rows, count):
            with torch.inference_mode(mode=False):  # else nothing could be written outside of that mode
                self._hold(rows, count)
        if generator is None or generator.device.type == "cpu":
            self.tensors[0].uniform_(generator=generator)
            if choices is not None:
                self.tensors[1].uniform_(0, choices, generator=generator)
        else:
            there = torch.rand(rows, count, dtype=torch.float64, generator=generator, device=generator.device)
            self._memory.copy_(there)
            if choices is not None:
                self.tensors[1].mul_(choices)

    def _hold(self, rows: int, count: int) -> None:
        self._memory = torch.empty(rows, count, dtype=torch.float64, device="cpu")
        self.tensors = self._memory.unbind()
        """Each row, float64 ``[count]``; they hold until the next call."""
        self.arrays = [row.numpy() for row in self.tensors]
        """The same memory."""
