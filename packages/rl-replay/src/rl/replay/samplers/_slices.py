"""Sampler of slices: sequences of consecutive steps of one trajectory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, final

import numpy as np
import torch
from torch import Tensor

from rl.core.arguments import as_integer, foreign_arguments
from rl.core.errors import ArgumentError
from rl.core.interfaces import Storage
from rl.core.keys import IS_INIT, NEXT, TRUNCATED, NestedKey
from rl.replay._arguments import check_replacement
from rl.replay._indices import Longs
from rl.replay._slice_sampling import SlicesBase
from rl.replay._slice_table import NewSlices, TrajectoryTable
from rl.replay._state import Fields
from rl.replay._untraced import untraced
from rl.replay.samplers._base import SamplerBase


@final
@foreign_arguments()
class SliceSampler(SlicesBase, SamplerBase):  # pyright: ignore[reportIncompatibleVariableOverride]  a property
    """Sampler of slices, with replacement: a trajectory uniformly, then the first step of the slice uniformly.

    Pass exactly one of `num_slices` and `slice_len`; a batch of n rows then has n / num_slices steps in each slice, or
    n / slice_len slices. A sample is flat, one slice after the other. No slice crosses the end of a trajectory or the
    write position of a full ring; what is left of a partly overwritten trajectory is a shorter trajectory. Sampling
    takes the same time for every number of rows and trajectories.

    A buffer sets these flags in a sampled TensorDict and returns them in its info:

    - ``("next", "truncated")`` and ``("next", "done")``, bool ``[n, 1]``: as stored, and true at the last step of each
      slice; ``("next", "terminated")`` as stored. Without a stored one it is ``done & ~truncated`` as stored;
    - ``is_init``, bool ``[n, 1]``: as stored, and true at the first step of each slice, so that recurrent modules begin
      with the state stored there;
    - ``("collector", "mask")`` with `pad_output`.

    Stored flags keep their shape, ``[n]`` for instance, and ``is_init`` takes theirs if it is not stored. Stored rows
    are not changed. The dimension of steps is named ``time``. One sampler serves one buffer. Rows without end flags and
    without trajectory ids are rejected when they are written; `rl.replay.check_slices` validates stored trajectories.

    Args:
        num_slices: Number of slices in a batch.
        slice_len: Number of steps of a slice.
        end_key: Flag of the last step of a trajectory. If None, the stored ones of ``("next", "done")``,
            ``("next", "terminated")`` and ``("next", "truncated")``. Of the flags of a group of agents, such as
            ``("next", "agents", "done")``, any ends it.
        end_keys: Flags, any of which ends a trajectory, in the place of `end_key`; those not stored are ignored.
        traj_key: Trajectory id; another trajectory begins where it changes. If None, ``("collector", "traj_ids")`` or
            ``"episode"`` if stored. Flags and ids may be combined.
        truncated_key: Flag that is set at the last step of a slice, as is ``done`` next to it; None for neither.
        init_key: Flag that is set at the first step of a slice; None for none.
        strict_length: Whether to sample only trajectories that have enough steps. Otherwise shorter ones are taken as a
            whole, and a batch has fewer rows.
        pad_output: Whether samples are ``[num_slices, slice_len]``. A shorter slice is padded with its last step;
            ``("collector", "mask")``, bool ``[num_slices, slice_len]``, is false there.
        span: Number of steps of a slice that may lie outside of its trajectory, where they are cut off: an integer
            below the slice's length, True for all but one, or a pair: before its first step, after its last step.
        newest_first: Whether slices that were written since the last sample come first, each once: each trajectory is
            cut into slices of `slice_len` steps as it grows. The others of the batch are sampled as usual. This is the
            online queue of DreamerV3 (Hafner et al., 2025).
        replacement: Only True; `SliceSamplerWithoutReplacement` samples without.

    Raises:
        ArgumentError: If an argument is out of its range.

    Example:
        >>> from tensordict import TensorDict
        >>> from rl.replay import LazyTensorStorage, TensorDictReplayBuffer
        >>> done = torch.tensor([0, 0, 0, 1, 0, 0, 0, 0], dtype=torch.bool).unsqueeze(-1)
        >>> buffer = TensorDictReplayBuffer(
        ...     storage=LazyTensorStorage(100), sampler=SliceSampler(slice_len=3), batch_size=6
        ... )
        >>> _ = buffer.extend(TensorDict({"x": torch.arange(8), ("next", "done"): done}, batch_size=[8]))
        >>> sample = buffer.sample()
        >>> sample["x"].view(2, 3).diff().tolist(), sample["next", "truncated"].flatten().tolist()
        ([[1, 1], [1, 1]], [False, False, True, False, False, True])
    """

    def __init__(  # noqa: PLR0913  # TorchRL's arguments
        self,
        *,
        num_slices: int | None = None,
        slice_len: int | None = None,
        end_key: NestedKey | None = None,
        end_keys: Sequence[NestedKey] | None = None,
        traj_key: NestedKey | None = None,
        truncated_key: NestedKey | None = (NEXT, TRUNCATED),
        init_key: NestedKey | None = IS_INIT,
        strict_length: bool = True,
        pad_output: bool = False,
        span: bool | int | tuple[bool | int, bool | int] = False,
        replacement: bool = True,
        newest_first: bool = False,
    ) -> None:
        check_replacement(type(self).__name__, "SliceSamplerWithoutReplacement", replacement=replacement)
        keys = {"end_key": end_key, "traj_key": traj_key, "truncated_key": truncated_key, "init_key": init_key}
        super().__init__(
            num_slices,
            slice_len,
            keys=keys,
            end_keys=end_keys,
            strict_length=strict_length,
            pad_output=pad_output,
            span=span,
        )
        if newest_first and slice_len is None:
            raise ArgumentError(f"{self._owner}: newest_first cuts trajectories into slices: give it slice_len")
        self._new = NewSlices(self._owner, as_integer(slice_len, self._owner, "slice_len")) if newest_first else None
        self.prefetchable = not newest_first  # a discarded batch would lose the slices that it took

    @untraced
    def sample(
        self, storage: Storage, batch_size: int, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, dict[Any, Any]]:
        """Sample indices int64 ``[n]``, n at most `batch_size`, or ``[num_slices, slice_len]`` with `pad_output`.

        The info has ``slices``, the number of steps of each slice, and ``runs``, the first row of each slice, if all
        have equally many rows that are adjacent in storage. `postprocess` needs the former.

        Raises:
            ArgumentError: If `batch_size` is not a multiple of `num_slices` or `slice_len`.
            ContractError: If the storage is empty, no trajectory is long enough, or rows have no end flags and no
                trajectory ids.
        """
        count, length = self._split(storage, batch_size)
        table, candidates = self._candidates(storage, length)
        if self._new is None:
            return self._rows(table, candidates, count, length, generator)
        numbers, first, steps = self._places(table, candidates, count, length, generator)
        newest = self._new.take(table, count)
        numbers[: len(newest)], first[: len(newest)] = table.locate(newest)
        steps[: len(newest)] = length
        return self._rows_from(table, numbers, first, steps, length)

    def extended(self, index: Tensor, data: Any) -> None:
        """Add rows that were just written to the table of trajectories, and to the queue of new slices."""
        super().extended(index, data)
        if self._new is not None and self._current is not None:
            self._new.follow(self._current, len(index))

    def empty(self) -> None:
        """Forget all trajectories."""
        super().empty()
        if self._new is not None:
            self._new.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the table of trajectories, and the queue of new slices with `newest_first`."""
        state = super().state_dict()
        return state if self._new is None else {"trajectories": state, "new": self._new.state()}

    def _load(self, state: Any, rows: int | None, max_size: int | None) -> None:
        if self._new is None:
            super()._load(state, rows, max_size)
            return
        fields = Fields(self._owner, state, ("trajectories", "new"))
        super()._load(fields["trajectories"], rows, max_size)
        self._new = NewSlices(self._owner, self._new.length)  # the twin shares the other one
        self._new.load(fields["new"])


@final
@foreign_arguments()
class SliceSamplerWithoutReplacement(SlicesBase, SamplerBase):  # pyright: ignore[reportIncompatibleVariableOverride]
    """Sampler of slices in passes: each pass samples one slice of each trajectory, its first step uniformly.

    Everything else is as in `SliceSampler`. Writing rows begins a new pass. Beginning a pass takes time proportional to
    the number of trajectories, sampling within it does not.

    Args:
        num_slices: Number of slices in a batch; exactly one of this and `slice_len`.
        slice_len: Number of steps of a slice.
        drop_last: Whether to drop the last batch of a pass if it has fewer slices.
        end_key: Argument of `SliceSampler`.
        end_keys: Argument of `SliceSampler`.
        traj_key: Argument of `SliceSampler`.
        truncated_key: Argument of `SliceSampler`.
        init_key: Argument of `SliceSampler`.
        strict_length: Argument of `SliceSampler`.
        shuffle: Whether to sample trajectories in a new random order in each pass, otherwise in the order of their
            first rows.

    Raises:
        ArgumentError: If an argument is out of its range.

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
        """Return the next slices of the pass: indices int64 ``[n]``, n at most `batch_size`. See `SliceSampler.sample`.

        Raises:
            ContractError: As `SliceSampler.sample`, or if `drop_last` leaves nothing of a pass.
        """
        count, length = self._split(storage, batch_size)
        table, candidates = self._candidates(storage, length)
        order = self._order
        if order is None or self._of != [length, table.version] or (self.drop_last and self._left(order) < count):
            if self.drop_last and len(candidates) < count:
                raise ArgumentError(
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
        """Return the table of trajectories, the order of the pass and the position in it."""
        return {
            "drop_last": self.drop_last,
            "shuffle": self.shuffle,
            "trajectories": super().state_dict(),
            "order": None if self._order is None else torch.from_numpy(self._order.copy()),
            "position": self._position,
            "of": list(self._of),
            "ran_out": self.ran_out,
        }

    def _load(self, state: Any, rows: int | None, max_size: int | None) -> None:
        fields = Fields(
            self._owner, state, ("drop_last", "shuffle", "trajectories", "order", "position", "of", "ran_out")
        )
        fields.match(drop_last=self.drop_last, shuffle=self.shuffle)
        super()._load(fields["trajectories"], rows, max_size)
        self._of, self.ran_out = fields.integers("of", low=0, high=2**63), fields.flag("ran_out")
        self._order, count = None, 0
        if fields["order"] is not None:
            lines = fields["trajectories"]["table"]["lines"]
            order = fields.indices("order", high=lines.shape[1]).numpy().copy()
            self._order, count = order, len(order)
            if self.ran_out or len(self._of) != 2 or (lines[1, order] < 1).any() or np.unique(order).size < count:
                fields.fail("the order of its pass repeats or lacks a trajectory, or the pass has ended")
        self._position = fields.integer("position", high=None if self._order is None else count - 1)

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
