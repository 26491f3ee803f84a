"""What both samplers of slices have in common: arguments, the table of trajectories, and how rows come of lines."""

from __future__ import annotations

from typing import Any, Final

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.errors import ContractError
from rl.core.interfaces import Storage
from rl.core.keys import NestedKey
from rl.replay._dense_set import Longs
from rl.replay._random import refuse_empty
from rl.replay._segments import SegmentTable
from rl.replay._slice_index import pick, place_slices, slice_rows
from rl.replay._slice_marks import SliceMarks
from rl.replay._slice_options import SliceOptions
from rl.replay._trajectories import Trajectories

__all__ = ["SHAPE", "SliceCore", "random_numbers"]

SHAPE = "slices"
"""Under which the info of a draw has the shape of its slices until their rows are marked."""


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

    def able(self, storage: Storage, length: int) -> tuple[SegmentTable, Longs]:
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

    def draw(self, table: SegmentTable, able: Longs, u: Tensor, length: int) -> tuple[Tensor, dict[Any, Any]]:
        """One slice of each of so many trajectories as `u` float64 ``[1 or 2, n]`` has columns.

        The first row says where slices begin; the second one, if there is one, which of `able` they are of. Otherwise
        they are of `able`, one after the other.
        """
        numbers = u.cpu().numpy()
        lines = table.lines[able[pick(numbers[1], len(able))] if len(numbers) > 1 else able]
        first, have = place_slices(lines, numbers[0], length, self.options.span(length))
        steps = None if self.options.whole else have
        rows = torch.from_numpy(slice_rows(lines, first, steps, length, table.capacity, plain=table.plain))
        some = None if steps is None else torch.from_numpy(steps)
        index, shape = self.marks.shaped(rows, some)
        return index, {SHAPE: shape}

    def mark(self, data: TensorDictBase, info: dict[Any, Any]) -> None:
        """Write the flags of a draw into its rows and its info."""
        info.update(self.marks.of_data(data, info.pop(SHAPE)))

    def __repr__(self) -> str:
        return f"{self._who}({self.options}, {self.trajectories})"


def random_numbers(rows: int, count: int, generator: torch.Generator | None) -> Tensor:
    """Uniform in [0, 1), float64 ``[rows, count]``."""
    device = "cpu" if generator is None else generator.device
    return torch.rand(rows, count, dtype=torch.float64, generator=generator, device=device)
