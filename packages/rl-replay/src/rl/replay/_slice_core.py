"""What both samplers of slices have in common: arguments, the table of trajectories, and how rows come of lines."""

from __future__ import annotations

from typing import Any, Final

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.errors import ContractError
from rl.core.interfaces import Storage
from rl.core.keys import NestedKey
from rl.replay._dense_set import DenseSet, Longs
from rl.replay._random import refuse_empty
from rl.replay._segments import SegmentTable
from rl.replay._slice_index import place_slices, slice_rows, whole_rows
from rl.replay._slice_marks import Drawn, SliceMarks
from rl.replay._slice_options import SliceOptions
from rl.replay._trajectories import Trajectories

__all__ = ["DRAWN", "SliceCore", "random_numbers"]

DRAWN = "slices"
"""Under which the info of a draw has what it knows about its slices until their rows are marked."""


class SliceCore:
    """Slices of trajectories that somebody else chose.

    Args:
        who: for messages.
        options: how long slices are.
        end_key: see `rl.replay._boundaries.Boundaries`.
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
        self.options: Final = options
        self.marks: Final = SliceMarks(truncated_key, init_key, pad=options.pad)
        self.trajectories: Final = Trajectories(who, end_key, traj_key)

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
        refuse_empty(self._who, storage, batch_size)
        return self.options.split(batch_size)

    def draw(
        self, table: SegmentTable, able: DenseSet | Longs, u: Tensor, length: int
    ) -> tuple[Tensor, dict[Any, Any]]:
        """One slice for each column of `u`, float64 ``[1 or 2, n]``: its first row says where in a trajectory.

        Args:
            table: of the trajectories.
            able: lines of which the second row of `u` picks one for each slice; or an array of n, one for each.
            u: uniform in [0, 1).
            length: of a slice.
        """
        options = self.options
        where, *which = (u if u.is_cpu else u.cpu()).unbind()
        if isinstance(able, DenseSet):
            chosen = able.tensor.index_select(0, (which[0] * len(able)).long())  # never rounded up, see `pick`
        else:
            chosen = torch.from_numpy(able)
        lines = table.line_tensor.index_select(0, chosen)
        steps, count = None, len(chosen)
        if options.whole and table.plain:
            rows, begin = whole_rows(lines, where, length, table.capacity, wraps=table.clock > table.capacity)
        else:
            places, numbers = lines.numpy(), where.numpy()
            first, steps = place_slices(places, numbers, length, options.span(length))
            steps = None if options.whole else steps
            rows, begin = map(
                _tensor, slice_rows(places, first, steps, length, table.capacity, plain=table.plain, pad=options.pad)
            )
            assert rows is not None
        return rows if options.pad else rows.view(-1), {DRAWN: Drawn(count, length, steps, begin)}

    def gather(self, storage: Storage, index: Tensor, info: dict[Any, Any]) -> Any:
        """The rows of a draw: with their flags, as a TensorDict, where the storage has nothing but tensors."""
        data = self.marks.gather(storage, index, info[DRAWN])
        return storage.get(index) if data is None else data

    def mark(self, data: TensorDictBase, info: dict[Any, Any]) -> None:
        """Write the flags of a draw into its rows and its info."""
        info.update(self.marks.of_data(data, info.pop(DRAWN)))

    def __repr__(self) -> str:
        return f"{self._who}({self.options}, {self.trajectories})"


def random_numbers(rows: int, count: int, generator: torch.Generator | None) -> Tensor:
    """Uniform in [0, 1), float64 ``[rows, count]``."""
    if generator is None:
        return torch.rand(rows, count, dtype=torch.float64, device="cpu")
    return torch.rand(rows, count, dtype=torch.float64, generator=generator, device=generator.device)


def _tensor(array: Longs | None) -> Tensor | None:
    return None if array is None else torch.from_numpy(array)
