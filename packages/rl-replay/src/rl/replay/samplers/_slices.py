"""Sampling of slices: steps that follow each other within one trajectory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, final

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.interfaces import Storage
from rl.core.keys import IS_INIT, NEXT, TRUNCATED, NestedKey
from rl.replay import _foreign
from rl.replay._slices.core import DRAWN, SliceCore
from rl.replay._slices.options import SliceOptions
from rl.replay._state import Apply
from rl.replay._untraced import untraced
from rl.replay.samplers._random import refuse_priority, refuse_without_replacement

__all__ = ["SliceSampler"]


@final
@_foreign.slice_sampler
class SliceSampler:
    """Slices of trajectories, with replacement: a trajectory uniformly, then where in it the slice begins, uniformly.

    Give exactly one of `num_slices` and `slice_len`; a batch of n rows is then n / num_slices steps of each, or
    n / slice_len slices. A sample is flat, one slice behind the other. No slice crosses the end of a trajectory, nor
    the place where a full ring is written next; the rest of a trajectory that is partly overwritten counts as one. A
    draw costs the same for every number of rows and of trajectories.

    The info of a draw, which buffers also write into a sampled TensorDict, has

    - ``("next", "truncated")`` and ``("next", "done")``, bool ``[n, 1]``: as stored, and true at the last step of each
      slice; ``("next", "terminated")`` as stored. Rows that lack it get ``done & ~truncated`` as stored: a slice that
      was only cut off is not terminated;
    - ``is_init``, bool ``[n, 1]``: as stored, and true at the first step of each slice, so that recurrent modules begin
      with the state that is stored there;
    - ``("collector", "mask")`` with `pad_output`.

    The rows of the first draws are looked at: where what they say came next (``("next", "observation")``) is what the
    next row has (``"observation"``) nearly everywhere, and no flag says that a trajectory ends where it is not, a slice
    over that place is refused when it is drawn. Rows with names of trajectories are trusted, and so are those of which
    another entry that changes does go on.

    Flags that are stored keep their shape, ``[n]`` for instance, and ``is_init`` takes theirs if it is not stored.
    Stored rows are not changed. The dimension of steps is named ``time`` where several environments are stored side by
    side, since the rows of a slice are not side by side then. One sampler serves one buffer.

    Args:
        num_slices: slices in a batch.
        slice_len: steps of a slice.
        end_key: flag of the last step of a trajectory. If None, whichever there are of ``("next", "done")``,
            ``("next", "terminated")`` and ``("next", "truncated")``.
        traj_key: name of the trajectory; where it changes, another one begins. If None, ``("collector", "traj_ids")``
            or ``"episode"`` where there is one. Both kinds of marks count.
        truncated_key: where the ends of slices are marked, with ``done`` and ``terminated`` beside it; None for not.
        init_key: where the beginnings of slices are marked; None for not.
        strict_length: draw from trajectories that are long enough only. Otherwise each counts, and a batch is smaller
            where one is shorter than a slice.
        pad_output: samples are ``[num_slices, slice_len]``. A shorter slice repeats its last step where
            ``("collector", "mask")`` bool ``[num_slices, slice_len]`` is false; each copy begins and ends a slice.
        span: how many steps of a slice may lie outside of its trajectory, where they are cut off: a number below the
            slice's length, True for all but one, or a pair: before its beginning, behind its end.
        replacement: True; `SliceSamplerWithoutReplacement` samples without.

    Raises:
        ContractError: if an argument is out of its range.

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

    ran_out = False

    def __init__(
        self,
        *,
        num_slices: int | None = None,
        slice_len: int | None = None,
        end_key: NestedKey | None = None,
        traj_key: NestedKey | None = None,
        truncated_key: NestedKey | None = (NEXT, TRUNCATED),
        init_key: NestedKey | None = IS_INIT,
        strict_length: bool = True,
        pad_output: bool = False,
        span: bool | int | tuple[bool | int, bool | int] = False,
        replacement: bool = True,
    ) -> None:
        who = type(self).__name__
        refuse_without_replacement(who, "SliceSamplerWithoutReplacement", replacement=replacement)
        self._core: Final = SliceCore(
            who,
            SliceOptions(who, num_slices, slice_len, strict=strict_length, pad=pad_output, span=span),
            end_key=end_key,
            traj_key=traj_key,
            truncated_key=truncated_key,
            init_key=init_key,
        )

    def attach(self, storage: Storage) -> None:
        """Take the trajectories of `storage`, and those that are written into it from now on; a buffer calls it.

        Raises:
            ContractError: if its rows do not say where a trajectory ends, or the sampler belongs to another buffer.
        """
        self._core.trajectories.attach(storage)

    def admit(self, data: Any) -> None:
        """Refuse a batch before it is written.

        Raises:
            ContractError: if it does not say where a trajectory ends.
        """
        self._core.trajectories.admit(data)

    def sample(
        self, storage: Storage, batch_size: int, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, dict[Any, Any]]:
        """Draw slices: indices int64 ``[n]``, n at most `batch_size`, or ``[num_slices, slice_len]`` with `pad_output`.

        Raises:
            ContractError: if the storage is empty, `batch_size` is no multiple of what was asked for, no trajectory is
                long enough, rows do not say where a trajectory ends, or do not follow each other (see the class).
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
        return self._core.draw(storage, table, able, count, length, generator)

    def gather(self, storage: Storage, index: Tensor, info: dict[Any, Any]) -> Any:
        """The rows of a draw, as `storage.get` has them, with their flags where that is quicker than `mark`."""
        return self._core.gather(storage, index, info)

    def mark(self, data: TensorDictBase, info: dict[Any, Any]) -> None:
        """Write the flags of a draw into its rows and its info."""
        self._core.mark(data, info)

    def extended(self, index: Tensor, data: Any) -> None:
        """Continue trajectories with rows that were just written, or begin others."""
        self._core.trajectories.extended(index, data)

    def update_priority(self, index: Tensor, priority: Tensor) -> None:  # noqa: ARG002  the protocol names them
        """Refuse: there are no priorities.

        Raises:
            ContractError: always.
        """
        refuse_priority("SliceSampler")

    def restart(self) -> None:
        """Nothing to do: there are no passes."""

    def empty(self) -> None:
        """Forget all trajectories."""
        self._core.empty()

    def state_dict(self) -> dict[str, Any]:
        """The table of trajectories."""
        return self._core.trajectories.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the trajectories of `state`.

        Raises:
            CheckpointError: if `state` is damaged, or of a storage with another size. Nothing is changed then.
        """
        self.prepare_load(state)()

    def prepare_load(self, state: Mapping[str, Any], rows: int | None = None, max_size: int | None = None) -> Apply:
        """Validate a state without applying it; returns the function that applies it.

        Args:
            state: of `state_dict`.
            rows: number of rows that the storage will have; not known if None.
            max_size: of the storage; not known if None.

        Raises:
            CheckpointError: see `load_state_dict`.
        """
        return self._core.prepare_load(state, rows, max_size)

    def __repr__(self) -> str:
        return repr(self._core)
