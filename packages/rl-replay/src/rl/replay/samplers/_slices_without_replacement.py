"""Sampling of slices in passes: one slice of each trajectory before any of them comes again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, final

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.errors import ContractError
from rl.core.interfaces import Storage
from rl.core.keys import IS_INIT, NEXT, TRUNCATED, NestedKey
from rl.replay import _foreign
from rl.replay._slices.core import DRAWN, SliceCore
from rl.replay._slices.index_set import Longs
from rl.replay._slices.options import SliceOptions
from rl.replay._slices.table import FROM, TO, SegmentTable
from rl.replay._state import Apply, Fields, reading
from rl.replay._untraced import untraced
from rl.replay.samplers._random import refuse_priority

__all__ = ["SliceSamplerWithoutReplacement"]


@final
@_foreign.slice_sampler_without_replacement
class SliceSamplerWithoutReplacement:
    """Passes over the trajectories: in each pass one slice of each, which begins uniformly in it.

    Everything else is as in `SliceSampler`. Rows that are written begin a new pass. A pass costs as much as there are
    trajectories, a draw within it does not.

    Args:
        num_slices: slices in a batch; exactly one of this and `slice_len`.
        slice_len: steps of a slice.
        drop_last: leave out the last batch of a pass if it has fewer slices. Otherwise it comes, smaller.
        end_key: see `SliceSampler`.
        traj_key: likewise.
        truncated_key: likewise.
        init_key: likewise.
        strict_length: likewise.
        shuffle: a new random order for each pass; otherwise trajectories come in the order of their first rows.

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
        traj_key: NestedKey | None = None,
        truncated_key: NestedKey | None = (NEXT, TRUNCATED),
        init_key: NestedKey | None = IS_INIT,
        strict_length: bool = True,
        shuffle: bool = True,
    ) -> None:
        who = type(self).__name__
        self.drop_last: Final = drop_last
        self.shuffle: Final = shuffle
        self._core: Final = SliceCore(
            who,
            SliceOptions(who, num_slices, slice_len, strict=strict_length, pad=False),
            end_key=end_key,
            traj_key=traj_key,
            truncated_key=truncated_key,
            init_key=init_key,
        )
        self.restart()

    def attach(self, storage: Storage) -> None:
        """See `SliceSampler.attach`."""
        self._core.trajectories.attach(storage)

    def admit(self, data: Any) -> None:
        """See `SliceSampler.admit`."""
        self._core.trajectories.admit(data)

    def sample(
        self, storage: Storage, batch_size: int, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, dict[Any, Any]]:
        """The next slices of the pass, indices int64 ``[n]``, n at most `batch_size`.

        Raises:
            ContractError: as `SliceSampler.sample`, or if `drop_last` leaves nothing of a pass.
        """
        index, info = self.draw(storage, batch_size, generator=generator)
        return index, self._core.marks.of_storage(storage, index, info[DRAWN])

    @untraced
    def draw(
        self, storage: Storage, batch_size: int, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, dict[Any, Any]]:
        """As `sample`, without flags: they come with `mark`, from the rows themselves.

        Raises:
            ContractError: likewise.
        """
        count, length = self._core.split(storage, batch_size)
        table, able = self._core.able(storage, length)
        order = self._order
        if order is None or self._of != [length, table.version] or (self.drop_last and self._left(order) < count):
            if self.drop_last and len(able) < count:
                raise ContractError(
                    f"SliceSamplerWithoutReplacement: drop_last leaves nothing of {len(able)} trajectories in batches"
                    f" of {count} slices; use a smaller batch or drop_last=False"
                )
            order = self._new_order(table, able.members[: len(able)], generator)
            self._position, self._of = 0, [length, table.version]
        lines = order[self._position : self._position + count]
        self._position += len(lines)
        left = self._left(order)
        self.ran_out = left == 0 or (self.drop_last and left < count)
        self._order = None if self.ran_out else order
        return self._core.draw(storage, table, lines, len(lines), length, generator)

    def gather(self, storage: Storage, index: Tensor, info: dict[Any, Any]) -> Any:
        """The rows of a draw, as `storage.get` has them, with their flags where that is quicker than `mark`."""
        return self._core.gather(storage, index, info)

    def mark(self, data: TensorDictBase, info: dict[Any, Any]) -> None:
        """Write the flags of a draw into its rows and its info."""
        self._core.mark(data, info)

    def extended(self, index: Tensor, data: Any) -> None:
        """Continue trajectories with rows that were just written, or begin others; begin a new pass."""
        self.restart()
        self._core.trajectories.extended(index, data)

    def update_priority(self, index: Tensor, priority: Tensor) -> None:  # noqa: ARG002  the protocol names them
        """Refuse: there are no priorities.

        Raises:
            ContractError: always.
        """
        refuse_priority("SliceSamplerWithoutReplacement")

    def restart(self) -> None:
        """Begin a new pass with the next draw."""
        self.ran_out = False
        self._order: Longs | None = None
        self._position = 0
        self._of: list[int] = []  # steps of a slice, and version of the table, that the order is for

    def empty(self) -> None:
        """Forget all trajectories."""
        self.restart()
        self._core.empty()

    def state_dict(self) -> dict[str, Any]:
        """The table of trajectories, the order of the pass and the position in it."""
        return {
            "drop_last": self.drop_last,
            "shuffle": self.shuffle,
            "trajectories": self._core.trajectories.state(),
            "order": None if self._order is None else torch.from_numpy(self._order.copy()),
            "position": self._position,
            "of": list(self._of),
            "ran_out": self.ran_out,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the pass of `state`.

        Raises:
            CheckpointError: if `state` is damaged, or of a sampler with other arguments or a storage with another size.
                Nothing is changed then.
        """
        self.prepare_load(state)()

    def prepare_load(self, state: Mapping[str, Any], rows: int | None = None, max_size: int | None = None) -> Apply:
        """Validate a state without applying it; returns the function that applies it. See `SliceSampler.prepare_load`.

        Raises:
            CheckpointError: see `load_state_dict`.
        """
        who = type(self).__name__
        with reading(who):
            fields = Fields(who, state, ("drop_last", "shuffle", "trajectories", "order", "position", "of", "ran_out"))
            fields.match(drop_last=self.drop_last, shuffle=self.shuffle)
            load = self._core.prepare_load(fields["trajectories"], rows, max_size)
            of, ran_out = fields.integers("of", low=0, high=2**63), fields.flag("ran_out")
            order, count = None, 0
            if fields["order"] is not None:
                lines = fields["trajectories"]["table"]["lines"]
                order = fields.indices("order", high=len(lines)).numpy().copy()
                count = len(order)
                short = lines[order, TO] - lines[order, FROM] < 1
                if ran_out or len(of) != 2 or short.any() or np.unique(order).size < count:
                    fields.fail("the order of its pass repeats or lacks a trajectory, or the pass has ended")
            position = fields.integer("position", high=None if order is None else count - 1)

        def apply() -> None:
            load()
            self._order, self._position, self._of, self.ran_out = order, position, of, ran_out

        return apply

    def __repr__(self) -> str:
        return f"{repr(self._core)[:-1]}, drop_last={self.drop_last}, shuffle={self.shuffle})"

    def _left(self, order: Longs) -> int:
        return len(order) - self._position

    def _new_order(self, table: SegmentTable, able: Longs, generator: torch.Generator | None) -> Longs:
        if not self.shuffle:
            return table.by_time(able)
        if generator is None:
            return able[torch.randperm(len(able), device="cpu").numpy()]
        return able[torch.randperm(len(able), generator=generator, device=generator.device).cpu().numpy()]
