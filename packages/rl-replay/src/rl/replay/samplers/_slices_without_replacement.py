"""Sampler of slices in passes: one slice of each trajectory in each pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, final

import numpy as np
import torch
from torch import Tensor

from rl.core.errors import ContractError
from rl.core.interfaces import Storage
from rl.core.keys import IS_INIT, NEXT, TRUNCATED, NestedKey
from rl.core.state import reading
from rl.replay import _foreign
from rl.replay._index_set import Longs
from rl.replay._slices.sampler import SlicesBase
from rl.replay._slices.table import TrajectoryTable
from rl.replay._state import Apply, Fields
from rl.replay._untraced import untraced
from rl.replay.samplers._base import SamplerBase

__all__ = ["SliceSamplerWithoutReplacement"]


@final
@_foreign.slice_sampler_without_replacement
class SliceSamplerWithoutReplacement(SlicesBase, SamplerBase):
    """Sampler of slices in passes: each pass samples one slice of each trajectory, its first step uniformly.

    Everything else is as in `SliceSampler`. Writing rows begins a new pass. Beginning a pass takes time proportional to
    the number of trajectories, sampling within it does not.

    Args:
        num_slices: slices in a batch; exactly one of this and `slice_len`.
        slice_len: steps of a slice.
        drop_last: drop the last batch of a pass if it has fewer slices.
        end_key: see `SliceSampler`.
        end_keys: see `SliceSampler`.
        traj_key: see `SliceSampler`.
        truncated_key: see `SliceSampler`.
        init_key: see `SliceSampler`.
        strict_length: see `SliceSampler`.
        shuffle: sample trajectories in a new random order in each pass, otherwise in the order of their first rows.

    Raises:
        ContractError: if an argument is out of its range.

    Example:
        >>> from tensordict import TensorDict
        >>> from rl.replay import ReplayBuffer, TensorStorage
        >>> data = TensorDict({"x": torch.arange(9), "episode": torch.arange(9) // 3}, batch_size=[9])
        >>> sampler = SliceSamplerWithoutReplacement(slice_len=3, shuffle=False)
        >>> buffer = ReplayBuffer(storage=TensorStorage(data), sampler=sampler, batch_size=6)
        >>> [batch["x"].tolist() for batch in buffer]
        [[0, 1, 2, 3, 4, 5], [6, 7, 8]]
    """

    def __init__(
        self,
        *,
        num_slices: int | None = None,
        slice_len: int | None = None,
        drop_last: bool = False,
        end_key: NestedKey | None = None,
        end_keys: Sequence[NestedKey] | None = None,
        traj_key: NestedKey | None = None,
        truncated_key: NestedKey | None = (NEXT, TRUNCATED),
        init_key: NestedKey | None = IS_INIT,
        strict_length: bool = True,
        shuffle: bool = True,
    ) -> None:
        keys = {"end_key": end_key, "traj_key": traj_key, "truncated_key": truncated_key, "init_key": init_key}
        super().__init__(num_slices, slice_len, keys=keys, end_keys=end_keys, strict_length=strict_length)
        self.drop_last: Final = drop_last
        self.shuffle: Final = shuffle
        self.restart()

    @untraced
    def sample(
        self, storage: Storage, batch_size: int, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, dict[Any, Any]]:
        """The next slices of the pass: indices int64 ``[n]``, n at most `batch_size`. See `SliceSampler.sample`.

        Raises:
            ContractError: as `SliceSampler.sample`, or if `drop_last` leaves nothing of a pass.
        """
        count, length = self._split(storage, batch_size)
        table, candidates = self._candidates(storage, length)
        order = self._order
        if order is None or self._of != [length, table.version] or (self.drop_last and self._left(order) < count):
            if self.drop_last and len(candidates) < count:
                raise ContractError(
                    f"SliceSamplerWithoutReplacement: drop_last leaves nothing of {len(candidates)} trajectories in"
                    f" batches of {count} slices; use a smaller batch or drop_last=False"
                )
            order = self._new_order(table, candidates.members, generator)
            self._position, self._of = 0, [length, table.version]
        numbers = order[self._position : self._position + count]
        self._position += len(numbers)
        left = self._left(order)
        self.ran_out = left == 0 or (self.drop_last and left < count)
        self._order = None if self.ran_out else order
        return self._rows(table, numbers, len(numbers), length, generator)

    def extended(self, index: Tensor, data: Any) -> None:
        """Add rows that were just written to the table of trajectories; the next sample begins a new pass."""
        self.restart()
        super().extended(index, data)

    def replaced(self, index: Tensor, data: Any) -> None:
        """Read trajectories again, of which some rows were replaced; the next sample begins a new pass."""
        self.restart()
        super().replaced(index, data)

    def restart(self) -> None:
        """Begin a new pass with the next sample."""
        self.ran_out = False
        self._order: Longs | None = None
        self._position = 0
        self._of: list[int] = []  # steps of a slice, and version of the table, that the order is for

    def empty(self) -> None:
        """Forget all trajectories."""
        self.restart()
        super().empty()

    def state_dict(self) -> dict[str, Any]:
        """The table of trajectories, the order of the pass and the position in it."""
        return {
            "drop_last": self.drop_last,
            "shuffle": self.shuffle,
            "trajectories": super().state_dict(),
            "order": None if self._order is None else torch.from_numpy(self._order.copy()),
            "position": self._position,
            "of": list(self._of),
            "ran_out": self.ran_out,
        }

    def prepare_load(self, state: Mapping[str, Any], rows: int | None = None, max_size: int | None = None) -> Apply:
        """Validate a state without applying it; see `Stateful.prepare_load`.

        Raises:
            CheckpointError: see `load_state_dict`.
        """
        owner = type(self).__name__
        with reading(owner):
            fields = Fields(
                owner, state, ("drop_last", "shuffle", "trajectories", "order", "position", "of", "ran_out")
            )
            fields.match(drop_last=self.drop_last, shuffle=self.shuffle)
            load = super().prepare_load(fields["trajectories"], rows, max_size)
            of, ran_out = fields.integers("of", low=0, high=2**63), fields.flag("ran_out")
            order, count = None, 0
            if fields["order"] is not None:
                lines = fields["trajectories"]["table"]["lines"]
                order = fields.indices("order", high=lines.shape[1]).numpy().copy()
                count = len(order)
                if ran_out or len(of) != 2 or (lines[1, order] < 1).any() or np.unique(order).size < count:
                    fields.fail("the order of its pass repeats or lacks a trajectory, or the pass has ended")
            position = fields.integer("position", high=None if order is None else count - 1)

        def apply() -> None:
            load()
            self._order, self._position, self._of, self.ran_out = order, position, of, ran_out

        return apply

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, drop_last={self.drop_last}, shuffle={self.shuffle})"

    def _left(self, order: Longs) -> int:
        return len(order) - self._position

    def _new_order(self, table: TrajectoryTable, able: Longs, generator: torch.Generator | None) -> Longs:
        if not self.shuffle:
            return table.by_time(able)
        if generator is None:
            return able[torch.randperm(len(able), device="cpu").numpy()]
        return able[torch.randperm(len(able), generator=generator, device=generator.device).cpu().numpy()]
