"""Writer for data that does not change."""

from __future__ import annotations

from typing import Any, NoReturn, final

from torch import Tensor

from rl.core.errors import ContractError
from rl.core.interfaces import Storage
from rl.replay import _foreign
from rl.replay._state import Stateful

__all__ = ["ImmutableDatasetWriter"]


@final
@_foreign.fixed_writer
class ImmutableDatasetWriter(Stateful):
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
        """Do nothing: no row is ever written."""

    def empty(self) -> NoReturn:
        """Refuse.

        Raises:
            ContractError: always.
        """
        raise ContractError("ImmutableDatasetWriter: this buffer holds a fixed dataset; it cannot be emptied")

    def __repr__(self) -> str:
        return "ImmutableDatasetWriter()"
