"""Prioritized sampler of slices: the priority of its first step selects a slice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, final

import numpy as np
import torch
from torch import Tensor

from rl.core.arguments import foreign_arguments
from rl.core.backends import Backend
from rl.core.errors import ArgumentError
from rl.core.interfaces import Storage
from rl.core.keys import IS_INIT, NEXT, PRIORITY_WEIGHT, TRUNCATED, NestedKey
from rl.replay._indices import Longs
from rl.replay._slice_sampling import SlicesBase
from rl.replay._slice_table import TrajectoryTable, each_step
from rl.replay._state import Fields
from rl.replay._untraced import untraced
from rl.replay.samplers._base import SamplerBase
from rl.replay.samplers._prioritized import PrioritizedSampler


@final
@foreign_arguments()
class PrioritizedSliceSampler(SlicesBase, SamplerBase):  # pyright: ignore[reportIncompatibleVariableOverride]
    """Sampler of slices that begin at a row with a probability in proportion to its priority.

    A row can begin a slice if enough steps of its trajectory follow; among these rows, one is sampled as by
    `PrioritizedSampler`, and the slice is that row and the next ones. Priorities of other rows are kept for when they
    can begin a slice. The info of a sample has ``priority_weight``, float ``[n]``: the importance weight of its first
    row, for each step of the slice; a `TensorDictReplayBuffer` writes it into the sample. Flags, padding and the
    options of trajectories are as in `SliceSampler`.

    A row with a high priority is sampled within slices that begin before it only as often as these. To prioritize by
    the errors of complete slices, as Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed Reinforcement
    Learning", section 2.3, give the first row a priority computed from all errors of its slice.

    Args:
        max_capacity: Argument of `PrioritizedSampler`.
        alpha: Argument of `PrioritizedSampler`; may be set later.
        beta: Argument of `PrioritizedSampler`; may be set later.
        eps: Argument of `PrioritizedSampler`.
        dtype: Argument of `PrioritizedSampler`.
        reduction: Argument of `PrioritizedSampler`.
        num_slices: Argument of `SliceSampler`.
        slice_len: Argument of `SliceSampler`.
        end_key: Argument of `SliceSampler`.
        end_keys: Argument of `SliceSampler`.
        traj_key: Argument of `SliceSampler`.
        truncated_key: Argument of `SliceSampler`.
        init_key: Argument of `SliceSampler`.
        strict_length: Argument of `SliceSampler`. If False, a trajectory shorter than a slice is taken as a whole, and
            its first row has the priority of the slice.
        pad_output: Argument of `SliceSampler`.
        span: Number of steps of a slice that may lie after the last step of its trajectory, where they are cut off: an
            integer, or a pair ``(False, n)``. No step lies before the first one: a slice begins at a stored row.
        max_priority_within_buffer: Argument of `PrioritizedSampler`.
        backend: Argument of `PrioritizedSampler`.
        device: Argument of `PrioritizedSampler`.
        stratified: Argument of `PrioritizedSampler`.

    Raises:
        ArgumentError: If an argument is out of its range.
        BackendError: If the named back end is not installed.

    Example:
        >>> from tensordict import TensorDict
        >>> from rl.replay import LazyTensorStorage, TensorDictReplayBuffer
        >>> sampler = PrioritizedSliceSampler(100, alpha=1.0, beta=1.0, eps=0.0, slice_len=3, backend="torch")
        >>> buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100), sampler=sampler, batch_size=6)
        >>> _ = buffer.extend(TensorDict({"x": torch.arange(8), "episode": torch.arange(8) // 4}, batch_size=[8]))
        >>> buffer.update_priority(torch.arange(8), torch.tensor([0.0, 1, 9, 9, 0, 0, 9, 9]))
        >>> buffer.sample()["x"].view(2, 3).tolist()  # only row 1 has a priority and two steps that follow
        [[1, 2, 3], [1, 2, 3]]
    """

    def __init__(  # noqa: PLR0913  the arguments of both samplers
        self,
        max_capacity: int,
        alpha: float,
        beta: float,
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float32,
        reduction: str = "max",
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
        span: int | tuple[bool | int, bool | int] = 0,
        max_priority_within_buffer: bool = False,
        backend: str = "auto",
        device: torch.device | str | None = None,
        stratified: bool = False,
    ) -> None:
        keys = {"end_key": end_key, "traj_key": traj_key, "truncated_key": truncated_key, "init_key": init_key}
        span = span if isinstance(span, (tuple, list)) or span is True else (0, span)
        super().__init__(
            num_slices,
            slice_len,
            keys=keys,
            end_keys=end_keys,
            strict_length=strict_length,
            pad_output=pad_output,
            span=span,
        )
        if self._spans[0]:
            raise ArgumentError(
                f"{self._owner}: a slice begins at a row with a priority, so that none of its steps lies before its"
                f" trajectory; use span=(False, {self._spans[1]}) for steps after it, got span={span}"
            )
        self._priorities: Final = PrioritizedSampler(
            max_capacity,
            alpha,
            beta,
            eps,
            dtype,
            reduction,
            max_priority_within_buffer,
            backend=backend,
            device=device,
            stratified=stratified,
        )
        self._of: list[int] = []  # steps of a slice, and version of the table, for which other rows are excluded

    @property
    def max_capacity(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]  it is that of the priorities
        """Largest number of rows."""
        return self._priorities.max_capacity

    @property
    def backend(self) -> Backend:
        """The selected priority tree and the reason."""
        return self._priorities.backend

    @property
    def device(self) -> torch.device:
        """Device of the priorities."""
        return self._priorities.device

    @property
    def alpha(self) -> float:
        """Exponent of the priorities; setting it recomputes all powers from raw priorities."""
        return self._priorities.alpha

    @alpha.setter
    def alpha(self, value: float) -> None:
        self._priorities.alpha = value
        self._of = []

    @property
    def beta(self) -> float:
        """Exponent of the importance weights."""
        return self._priorities.beta

    @beta.setter
    def beta(self, value: float) -> None:
        self._priorities.beta = value

    def attach(self, storage: Storage) -> None:
        """Read the trajectories of `storage`, and give its rows the priority of new rows; called by the buffer.

        Raises:
            ContractError: See `SliceSampler.attach`.
        """
        super().attach(storage)
        self._priorities.attach(storage)

    @untraced
    def sample(
        self, storage: Storage, batch_size: int, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, dict[Any, Any]]:
        """Sample indices int64 ``[n]``, and the info of `SliceSampler.sample` with ``priority_weight`` ``[n]``.

        Raises:
            ContractError: As `SliceSampler.sample`, or if all rows that can begin a slice have the priority zero.
        """
        count, length = self._split(storage, batch_size)
        table, _ = self._candidates(storage, length)
        if self._of != [length, table.version]:
            self._exclude_all(storage, table, length)
        begin, weights = self._priorities.sample(storage, count, generator=generator)
        numbers, first = table.locate(begin.cpu().numpy())
        steps = np.minimum(table.steps[numbers] - first, length)
        rows, info = self._rows_from(table, numbers, first, steps, length)
        weight = weights[PRIORITY_WEIGHT]
        if self._pad:
            info[PRIORITY_WEIGHT] = weight.unsqueeze(1).expand(rows.shape).clone()
        else:
            info[PRIORITY_WEIGHT] = weight.repeat_interleave(torch.from_numpy(steps).to(weight.device))
        return rows, info

    def extended(self, index: Tensor, data: Any) -> None:
        """Add rows that were just written to the table of trajectories, with the priority of new rows."""
        super().extended(index, data)
        self._priorities.extended(index, None)
        table = self._current
        if table is None or self._of[1:] != [table.version]:
            self._of = []
            return
        appended, added = np.unique(table.locate(index.reshape(-1).cpu().numpy())[0], return_counts=True)
        self._update(table, np.append(appended, table.changed), np.append(added, 0 * table.changed))

    def replaced(self, index: Tensor, data: Any) -> None:
        """Read trajectories again, of which some rows were replaced; these get the priority of new rows."""
        super().replaced(index, data)
        self._priorities.extended(index, None)
        self._of = []

    def update_priority(self, index: Any, priority: Any) -> None:
        """Set raw priorities, usually TD errors, of any stored rows; see `PrioritizedSampler.update_priority`.

        Raises:
            IndexError: If an index is not that of a stored row.
            ArgumentError: If an index is not an integer, or a priority or its power is infinite or NaN.
            ShapeError: If there is not one row of priorities for each index. In each case nothing is written.
        """
        self._priorities.update_priority(index, priority)
        table = self._current
        if table is None or self._of[1:] != [table.version]:
            self._of = []
            return
        rows = torch.as_tensor(index, device="cpu").reshape(-1).numpy()
        number, step = table.locate(rows)
        self._priorities.exclude(torch.from_numpy(rows[step >= self._bounds(table.steps[number])]))

    def update_priorities(self, index: Any, priority: Any) -> None:
        """Alias of `update_priority`."""
        self.update_priority(index, priority)

    def check_priority(self, priority: Any, rows: int) -> Tensor:
        """Validate raw priorities; see `PrioritizedSampler.check_priority`."""
        return self._priorities.check_priority(priority, rows)

    def check(self) -> None:
        """Wait for the device, and raise for an invalid update; see `PrioritizedSampler.check`."""
        self._priorities.check()

    def empty(self) -> None:
        """Forget all trajectories and priorities."""
        super().empty()
        self._priorities.empty()
        self._of = []

    def state_dict(self) -> dict[str, Any]:
        """Return the table of trajectories and the priorities."""
        return {
            "trajectories": super().state_dict(),
            "priorities": self._priorities.state_dict(),
            "of": list(self._of),
        }

    def adopt(self, twin: Any) -> None:
        """Continue as `twin`, with the tree of this sampler."""
        own = self._priorities
        super().adopt(twin)
        own.adopt(self._priorities)
        vars(self)["_priorities"] = own

    def _load(self, state: Any, rows: int | None, max_size: int | None) -> None:
        fields = Fields(self._owner, state, ("trajectories", "priorities", "of"))
        super()._load(fields["trajectories"], rows, max_size)
        vars(self)["_priorities"] = self._priorities.twin(fields["priorities"], rows, max_size)
        self._of = fields.integers("of", low=0, high=2**63)
        if len(self._of) not in (0, 2):
            fields.fail("of must be the steps of a slice and the version of the table, or nothing")

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, {self._priorities})"

    def _bounds(self, have: Longs) -> Longs:
        """Return the step from which on no slice begins, of trajectories of `have` steps; both int64 ``[n]``."""
        length, after = self._of[0], self._span(self._of[0])[1]
        short = 0 if self._strict else 1 + np.minimum(have - 1, after)
        return np.where(have >= length, have - length + 1 + after, np.minimum(short, have))

    def _exclude_all(self, storage: Storage, table: TrajectoryTable, length: int) -> None:
        """Include the rows that can begin a slice of `length`, and exclude all others, in one pass."""
        self._priorities.attach(storage)  # rows that were written past the buffer
        self._of = [length, table.version]
        numbers = np.flatnonzero(table.steps)
        self._update(table, numbers, np.full(len(numbers), len(storage)))

    def _update(self, table: TrajectoryTable, numbers: Longs, added: Longs) -> None:
        """Include and exclude rows near the ends of trajectories `numbers`, to which `added` steps were appended."""
        end = table.steps[numbers]
        which, step = each_step(np.maximum(0, end - added - self._of[0]), end)
        rows, begins = table.rows_of(numbers[which], step), step < self._bounds(end)[which]
        self._priorities.include(torch.from_numpy(rows[begins]))
        self._priorities.exclude(torch.from_numpy(rows[~begins]))
