"""Sampler of slices: sequences of consecutive steps of one trajectory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor

from rl.core.interfaces import Storage
from rl.core.keys import IS_INIT, NEXT, TRUNCATED, NestedKey
from rl.replay import _foreign
from rl.replay._arguments import check_replacement
from rl.replay._slices.sampler import SlicesBase
from rl.replay._untraced import untraced
from rl.replay.samplers._base import SamplerBase

__all__ = ["SliceSampler"]


@final
@_foreign.slice_sampler
class SliceSampler(SlicesBase, SamplerBase):
    """Sampler of slices, with replacement: a trajectory uniformly, then the first step of the slice uniformly.

    Give exactly one of `num_slices` and `slice_len`; a batch of n rows then has n / num_slices steps in each slice, or
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
    without trajectory ids are refused when they are written; `rl.replay.check_slices` validates stored trajectories.

    Args:
        num_slices: slices in a batch.
        slice_len: steps of a slice.
        end_key: flag of the last step of a trajectory. If None, the stored ones of ``("next", "done")``,
            ``("next", "terminated")`` and ``("next", "truncated")``. Of the flags of a group of agents, such as
            ``("next", "agents", "done")``, any ends it.
        end_keys: Flags, any of which ends a trajectory, in the place of `end_key`; those not stored are ignored.
        traj_key: trajectory id; another trajectory begins where it changes. If None, ``("collector", "traj_ids")`` or
            ``"episode"`` if stored. Flags and ids may be combined.
        truncated_key: flag that is set at the last step of a slice, as is ``done`` next to it; None for neither.
        init_key: flag that is set at the first step of a slice; None for none.
        strict_length: sample only trajectories that have enough steps. Otherwise shorter ones are taken as a whole, and
            a batch has fewer rows.
        pad_output: samples are ``[num_slices, slice_len]``. A shorter slice is padded with its last step;
            ``("collector", "mask")``, bool ``[num_slices, slice_len]``, is false there.
        span: how many steps of a slice may lie outside of its trajectory, where they are cut off: an integer below the
            slice's length, True for all but one, or a pair: before its first step, after its last step.
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

    @untraced
    def sample(
        self, storage: Storage, batch_size: int, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, dict[Any, Any]]:
        """Sample indices int64 ``[n]``, n at most `batch_size`, or ``[num_slices, slice_len]`` with `pad_output`.

        The info has ``slices``, the number of steps of each slice, and ``runs``, the first row of each slice, if all
        have equally many rows that are adjacent in storage. `postprocess` needs the former.

        Raises:
            ContractError: if the storage is empty, `batch_size` is not a multiple of `num_slices` or `slice_len`, no
                trajectory is long enough, or rows have no end flags and no trajectory ids.
        """
        count, length = self._split(storage, batch_size)
        table, candidates = self._candidates(storage, length)
        return self._rows(table, candidates, count, length, generator)
