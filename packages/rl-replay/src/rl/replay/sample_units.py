"""Sample units: which rows each sampled row becomes in a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final, Literal, final

import numpy as np
import torch
from torch import Tensor

from rl.core.arguments import as_integer, one_of
from rl.core.interfaces import Storage
from rl.core.keys import DONE, IS_INIT, NestedKey, next_key, unwrap
from rl.replay._state import Stateful
from rl.replay._trajectories import Boundaries, Trajectories, Unbounded, read_columns
from rl.replay._untraced import untraced

__all__ = ["SampleUnit", "Sequence", "Transition"]


class SampleUnit(Stateful, ABC):
    """Maps each sampled row, the *anchor*, to the rows that a batch has for it.

    The sampler of a buffer selects anchors, with its probabilities; ``sample_unit=`` of the buffer then selects the
    rows. A subclass defines `expand`. One that follows the writes of a buffer also defines `attach`, `admit`,
    `extended`, `replaced`, `patched`, `empty`, `state_dict` and `load_state_dict`, which a buffer calls as those of a
    sampler.

    Example:
        >>> import torch
        >>> from rl.replay import ReplayBuffer, TensorStorage
        >>> class Pairs(SampleUnit):
        ...     keys = ("anchor_index",)
        ...
        ...     def expand(self, index, info, storage):
        ...         pairs = torch.stack((index, (index + 1) % len(storage)), 1)
        ...         return pairs.flatten(), {"anchor_index": index.repeat_interleave(2)}
        >>> buffer = ReplayBuffer(storage=TensorStorage(torch.arange(9)), sample_unit=Pairs())
        >>> buffer.sample(5).view(5, 2).diff().remainder(9).flatten().tolist()
        [1, 1, 1, 1, 1]
    """

    keys: ClassVar[tuple[str, ...]] = ()
    """Entries that `expand` adds to the info."""

    @abstractmethod
    def expand(self, index: Tensor, info: dict[Any, Any], storage: Storage) -> tuple[Tensor, dict[Any, Any]]:
        """Rows of the batch, and the info about them.

        Args:
            index: Anchors, int64 ``[n]``.
            info: Info of the sampler. Tensors ``[n]``, such as ``priority_weight``, have to be returned for the rows.
            storage: Storage of the buffer, which must not be changed.
        """

    def attach(self, storage: Storage) -> None:
        """Read the rows of the storage of the buffer, which may have been written before."""

    def admit(self, data: Any) -> None:
        """Check a batch before it is written; raise if its rows cannot be expanded."""

    def extended(self, index: Tensor, data: Any) -> None:
        """Follow a write of the rows `index` ``[n]``."""

    def replaced(self, index: Tensor, data: Any) -> None:
        """Follow a replacement of the stored rows `index` ``[n]``; as a write, unless a subclass knows better."""
        self.extended(index, data)

    def patched(self, keys: Any) -> None:
        """Follow a replacement of the entries `keys` of some stored rows."""

    def empty(self) -> None:
        """Forget all rows."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


_DONE: NestedKey = next_key(DONE)


@final
class Sequence(Trajectories, SampleUnit):
    """Window of ``burn_in + length + bootstrap`` rows of one trajectory around each anchor.

    With the anchor at step t, the window has the steps t - burn_in, ..., t + length + bootstrap - 1, in units of
    `dilation`. A recurrent learner warms its state up on the first part, computes the loss on the `length` rows from
    the anchor on, and uses the last part for multi-step targets. The sampler selects anchors by its own rule, for
    example by priority; a batch of n anchors has n times as many rows as a window, one window after the other.

    A window does not leave its trajectory: rows beyond its ends repeat the first or the last one and are not valid. It
    does not cross the write position of a full ring either. In storages with ``ndim=2`` a window is of one environment.

    Adds to the info of a sample, and to the samples of a `TensorDictReplayBuffer`, each ``[n]``:

    - ``sequence_id``, int64: number of the window in the batch; ``step_in_sequence``, int64: position in the window;
    - ``learning_mask``, bool: neither burn-in nor bootstrap; ``validity_mask``, bool: not a repeated row;
    - ``anchor_index``, int64: row of the anchor. `TensorDictReplayBuffer.update_tensordict_priority` gives it the
      largest priority of the valid rows of its window in the learning part;
    - ``is_init``, where it is stored: also true at the first row of a window, at repeated rows and after them, so that
      recurrent modules begin with the state stored there.

    Args:
        length: Number of rows from the anchor on, in the learning part.
        episode_boundary: Rule at the end of a trajectory: ``"pad"`` repeats its last row; ``"stop"`` moves the window
            back, so that it ends there, and pads it if the trajectory is too short; ``"include_reset"`` continues with
            the next trajectory of the same environment.
        done_key: Flag of the last step of a trajectory; with the default ``("next", "terminated")`` and
            ``("next", "truncated")`` end one, too. A change of the trajectory id ends one, as in `SliceSampler`. None:
            nothing does.
        burn_in: Number of rows before the anchor. They never move the window.
        bootstrap: Number of rows after the learning part.
        dilation: Number of steps from one row of the window to the next.

    Raises:
        ArgumentError: If an argument is out of its range.

    Example:
        >>> from tensordict import TensorDict
        >>> from rl.replay import LazyTensorStorage, ReplayBuffer, SamplerWithoutReplacement
        >>> buffer = ReplayBuffer(
        ...     storage=LazyTensorStorage(100),
        ...     sampler=SamplerWithoutReplacement(shuffle=False),
        ...     sample_unit=Sequence(length=2, burn_in=1),
        ... )
        >>> done = torch.tensor([False, False, True, False])
        >>> _ = buffer.extend(TensorDict({"x": torch.arange(4), ("next", "done"): done}, batch_size=[4]))
        >>> sample, info = buffer.sample(4, return_info=True)
        >>> sample["x"].view(4, 3).tolist()
        [[0, 0, 1], [0, 1, 2], [1, 2, 2], [3, 3, 3]]
        >>> info["validity_mask"].view(4, 3).int().tolist()
        [[0, 1, 1], [1, 1, 1], [1, 1, 0], [0, 1, 0]]
    """

    keys: ClassVar = ("sequence_id", "step_in_sequence", "learning_mask", "validity_mask", "anchor_index")

    def __init__(
        self,
        length: int,
        episode_boundary: Literal["pad", "stop", "include_reset"] = "pad",
        done_key: NestedKey | None = _DONE,
        burn_in: int = 0,
        bootstrap: int = 0,
        dilation: int = 1,
    ) -> None:
        self.length: Final = as_integer(length, "Sequence", "length", 1)
        self.episode_boundary: Final = one_of(
            episode_boundary, "Sequence", "episode_boundary", ("pad", "stop", "include_reset")
        )
        self.done_key: Final = None if done_key is None else unwrap(done_key)
        self.burn_in: Final = as_integer(burn_in, "Sequence", "burn_in", 0)
        self.bootstrap: Final = as_integer(bootstrap, "Sequence", "bootstrap", 0)
        self.dilation: Final = as_integer(dilation, "Sequence", "dilation", 1)
        if self.done_key is None or episode_boundary == "include_reset":
            boundaries = Unbounded()
        else:
            boundaries = Boundaries("Sequence", None if self.done_key == _DONE else self.done_key, None)
        super().__init__("Sequence", boundaries)

    @untraced
    def expand(self, index: Tensor, info: dict[Any, Any], storage: Storage) -> tuple[Tensor, dict[Any, Any]]:
        """Rows int64 ``[n * window]``; tensors ``[n, ...]`` of `info` are repeated for the rows of their window."""
        table = self.table_of(storage)
        number, anchor = table.locate(index.cpu().numpy())
        last = table.steps[number] - 1
        place = anchor
        if self.episode_boundary == "stop":
            missing = self.dilation * (self.length + self.bootstrap - 1) - (last - anchor)
            place = anchor - np.minimum(np.maximum(missing, 0), anchor)
        window = np.arange(-self.burn_in, self.length + self.bootstrap)
        wanted = place[:, None] + self.dilation * window
        steps = np.maximum(np.minimum(wanted, last[:, None]), 0)
        count, size = wanted.shape
        number_of = torch.arange(count, device=index.device)
        step = torch.arange(size, device=index.device)
        learning = (step >= self.burn_in) & (step < self.burn_in + self.length)
        expanded: dict[Any, Any] = {
            key: value.repeat_interleave(size, 0) if isinstance(value, Tensor) and value.dim() else value
            for key, value in info.items()
        }
        expanded["sequence_id"] = number_of.repeat_interleave(size)
        expanded["step_in_sequence"] = step.repeat(count)
        expanded["learning_mask"] = learning.repeat(count)
        expanded["validity_mask"] = torch.from_numpy((wanted == steps).reshape(-1)).to(index.device)
        expanded["anchor_index"] = index.repeat_interleave(size)
        rows = torch.from_numpy(table.rows_of(number, steps).reshape(-1))
        stored = read_columns(storage, [IS_INIT], rows).get(IS_INIT)
        if stored is not None and stored.numel() == rows.numel():
            valid = expanded["validity_mask"].view(count, size)
            begins = torch.ones_like(valid)
            begins[:, 1:] = ~(valid[:, 1:] & valid[:, :-1])
            expanded[IS_INIT] = (stored.to(index.device).view(count, size) | begins).view(stored.shape)
        return rows.to(index.device), expanded

    def __repr__(self) -> str:
        return (
            f"Sequence(length={self.length}, episode_boundary={self.episode_boundary!r}, done_key={self.done_key!r},"
            f" burn_in={self.burn_in}, bootstrap={self.bootstrap}, dilation={self.dilation})"
        )


@final
class Transition(SampleUnit):
    """Each anchor is one row of the batch: what a buffer without a sample unit does.

    Example:
        >>> import torch
        >>> from rl.replay import ReplayBuffer, TensorStorage
        >>> ReplayBuffer(storage=TensorStorage(torch.arange(9)), sample_unit=Transition()).sample(4).shape
        torch.Size([4])
    """

    def expand(
        self,
        index: Tensor,
        info: dict[Any, Any],
        storage: Storage,  # noqa: ARG002  other units use it
    ) -> tuple[Tensor, dict[Any, Any]]:
        """`index` and `info` as they are."""
        return index, info
