"""Uniform samples that spread over the whole storage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from rl.core.arguments import as_integer
from rl.core.errors import ContractError
from rl.core.interfaces import Storage
from torch import Tensor

__all__ = ["StratifiedSampler"]


class StratifiedSampler:
    """Cut the storage into as many equal parts as the batch has rows, and sample one row of each.

    Each row has the same probability, as with independent samples; means of a batch have less variance.

    Example:
        >>> index, _ = StratifiedSampler().sample(range(100), 4)
        >>> index.div(25, rounding_mode="floor")
        tensor([0, 1, 2, 3])
    """

    @property
    def ran_out(self) -> bool:
        """False: rows are sampled with replacement."""
        return False

    def sample(
        self, storage: Storage, batch_size: int, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Sample indices int64 ``[batch_size]``.

        Raises:
            ContractError: If the storage is empty.
            ArgumentError: If `batch_size` is below 1.
        """
        count = as_integer(batch_size, "StratifiedSampler", "batch_size", least=1)
        if not len(storage):
            raise ContractError("StratifiedSampler: the storage is empty; extend the buffer before.")
        where = torch.arange(count) + torch.rand(count, generator=generator, dtype=torch.float64)
        return (where * (len(storage) / count)).long().clamp(max=len(storage) - 1), {}

    def extended(self, index: Tensor, data: Any) -> None:
        """Do nothing: only the number of rows counts."""

    def update_priority(self, index: Tensor, priority: Tensor) -> None:
        """Reject priorities.

        Raises:
            ContractError: Always.
        """
        raise ContractError("StratifiedSampler has no priorities. Use a PrioritizedSampler.")

    def restart(self) -> None:
        """Do nothing: there are no passes."""

    def empty(self) -> None:
        """Do nothing: nothing is kept."""

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing."""
