"""Base class of samplers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rl.core.interfaces import Storage
from rl.replay._arguments import raise_no_priority
from rl.replay._state import Stateful


class SamplerBase(Stateful):
    """Base of samplers: `rl.core.interfaces.Sampler` without passes, priorities and a state.

    A subclass defines `sample` and what it needs of the rest. One with a state defines `state_dict` and
    `load_state_dict`. A buffer calls `attach` when it is constructed and after a state was loaded; for a write `admit`,
    `expired` and `extended`, in this order; for a sample `sample` and `postprocess`.
    """

    ran_out: bool = False
    """Whether the last sample ended a pass over the storage."""
    max_capacity: Any = None
    """Largest number of rows, an integer; None for any."""
    batch_multiple: int = 1
    """Number that every batch size is a multiple of."""
    prefetchable: bool = True
    """Whether sampled batches may be discarded."""

    def sample(
        self, storage: Storage, batch_size: int, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, dict[Any, Any]]:
        """Sample indices int64 ``[n]``, and a dict with more about them; see `rl.core.interfaces.Sampler.sample`."""
        raise NotImplementedError

    def attach(self, storage: Storage) -> None:
        """Read the rows of the storage of the buffer, which may have been written before."""

    def admit(self, data: Any) -> None:
        """Check a batch before it is written; raise if rows cannot be sampled."""

    def available(self, storage: Storage) -> int:
        """Return the number of rows that may be sampled, which is the length of the buffer."""
        return len(storage)

    def expired(self, count: int) -> Tensor | None:  # noqa: ARG002  subclasses use it
        """Return up to `count` rows, int64, that a writer may overwrite first; None if there is no such order."""
        return None

    def extended(self, index: Tensor, data: Any) -> None:
        """Follow a write of the rows `index` ``[n]``."""

    def replaced(self, index: Tensor, data: Any) -> None:
        """Follow a replacement of the stored rows `index` ``[n]``; as a write, unless a subclass knows better."""
        self.extended(index, data)

    def patched(self, keys: Sequence[Any]) -> None:
        """Follow a replacement of the entries `keys` of some stored rows."""

    def postprocess(self, data: Any, info: dict[Any, Any]) -> Any:  # noqa: ARG002  subclasses use it
        """Return the collated batch of a sample with changed or added entries.

        A `TensorDictReplayBuffer` writes the info of a sample into the batch only if this method is not overridden.

        Args:
            data: Batch of the sample, which may be modified.
            info: Result of `sample` with ``index``; what is left in it is returned to the user.
        """
        return data

    def check_priority(self, priority: Any, rows: int) -> Tensor:  # noqa: ARG002  subclasses use them
        """Validate raw priorities ``[rows, ...]`` without writing them, and reduce them to ``[rows]``.

        Raises:
            ContractError: If there are no priorities.
        """
        raise_no_priority(type(self).__name__)

    def update_priority(self, index: Tensor, priority: Tensor) -> None:  # noqa: ARG002  subclasses use them
        """Set the priorities ``[n]`` of rows ``[n]``.

        Raises:
            ContractError: If there are no priorities.
        """
        raise_no_priority(type(self).__name__)

    def restart(self) -> None:
        """Start a new pass with the next sample."""

    def empty(self) -> None:
        """Forget all rows."""
