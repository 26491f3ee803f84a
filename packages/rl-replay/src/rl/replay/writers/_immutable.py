"""Writer for data that does not change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, final

from torch import Tensor

from rl.core.errors import ContractError
from rl.core.interfaces import Storage
from rl.replay import _foreign
from rl.replay._state import Apply, Fields

__all__ = ["ImmutableDatasetWriter"]


@final
@_foreign.fixed_writer
class ImmutableDatasetWriter:
    """Refuses every write: for a buffer over a dataset, whose storage is filled beforehand.

    Example:
        >>> import torch
        >>> from rl.replay.storages import TensorStorage
        >>> ImmutableDatasetWriter().claim(TensorStorage(torch.arange(3)), 1)
        Traceback (most recent call last):
        ...
        rl.core.errors.ContractError: ImmutableDatasetWriter: this buffer holds a fixed dataset, ...
    """

    def claim(self, storage: Storage, count: int) -> NoReturn:
        """Refuse.

        Raises:
            ContractError: always.
        """
        raise ContractError(
            f"ImmutableDatasetWriter: this buffer holds a fixed dataset, of {len(storage)} rows; {count} more cannot "
            "be written. Use a RoundRobinWriter for a buffer that grows"
        )

    def extended(self, index: Tensor, data: Any) -> None:
        """Nothing to note: no row is ever written."""

    def empty(self) -> NoReturn:
        """Refuse.

        Raises:
            ContractError: always.
        """
        raise ContractError("ImmutableDatasetWriter: this buffer holds a fixed dataset; it cannot be emptied")

    def state_dict(self) -> dict[str, Any]:
        """Empty."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Accept an empty state.

        Raises:
            CheckpointError: if it has entries.
        """
        self.prepare_load(state)

    def prepare_load(
        self,
        state: Mapping[str, Any],
        rows: int | None = None,  # noqa: ARG002  other writers use them
        max_size: int | None = None,  # noqa: ARG002  other writers use them
    ) -> Apply:
        """Validate a state; there is nothing to apply. See `RoundRobinWriter.prepare_load`.

        Raises:
            CheckpointError: if it has entries.
        """
        Fields(type(self).__name__, state, ())
        return _nothing

    def __repr__(self) -> str:
        return "ImmutableDatasetWriter()"


def _nothing() -> None:
    pass
