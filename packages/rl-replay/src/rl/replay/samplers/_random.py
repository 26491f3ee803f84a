"""Uniform sampling with replacement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor

from rl.core.interfaces import Storage
from rl.replay._arguments import check_replacement, check_rows, raise_no_priority
from rl.replay._state import Apply, Fields

__all__ = ["RandomSampler"]


@final
class RandomSampler:
    """Every stored row with the same probability, independently for each place in the batch.

    Args:
        replacement: True; `SamplerWithoutReplacement` samples without.

    Raises:
        ContractError: if `replacement` is False.

    Example:
        >>> from rl.replay.storages import TensorStorage
        >>> index, info = RandomSampler().sample(TensorStorage(torch.arange(5)), 100)
        >>> index.shape, bool((index < 5).all()), info
        (torch.Size([100]), True, {})
    """

    ran_out = False

    def __init__(self, *, replacement: bool = True) -> None:
        check_replacement("RandomSampler", "SamplerWithoutReplacement", replacement=replacement)

    def sample(
        self, storage: Storage, batch_size: int, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Draw indices ``[batch_size]`` int64.

        Raises:
            ContractError: if the storage is empty or `batch_size` is below 1.
        """
        rows = check_rows("RandomSampler", storage, batch_size)
        if generator is None:
            return torch.randint(rows, (batch_size,), device="cpu"), {}
        return torch.randint(rows, (batch_size,), generator=generator, device=generator.device), {}

    def extended(self, index: Tensor, data: Any) -> None:
        """Nothing to note: all rows are equal."""

    def update_priority(self, index: Tensor, priority: Tensor) -> None:  # noqa: ARG002  the protocol names them
        """Refuse: there are no priorities.

        Raises:
            ContractError: always.
        """
        raise_no_priority("RandomSampler")

    def restart(self) -> None:
        """Nothing to do: there are no passes."""

    def empty(self) -> None:
        """Nothing to forget."""

    def state_dict(self) -> dict[str, Any]:
        """Empty: the random state is the generator's."""
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
        rows: int | None = None,  # noqa: ARG002  other samplers use them
        max_size: int | None = None,  # noqa: ARG002  other samplers use them
    ) -> Apply:
        """Validate a state; there is nothing to apply. See `SamplerWithoutReplacement.prepare_load`.

        Raises:
            CheckpointError: if it has entries.
        """
        Fields(type(self).__name__, state, ())
        return _nothing

    def __repr__(self) -> str:
        return "RandomSampler()"


def _nothing() -> None:
    pass
