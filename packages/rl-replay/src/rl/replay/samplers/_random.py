"""Uniform sampling with replacement."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor

from rl.core.interfaces import Storage
from rl.replay._arguments import check_replacement, check_rows
from rl.replay.samplers._base import SamplerBase

__all__ = ["RandomSampler"]


@final
class RandomSampler(SamplerBase):
    """Uniform sampler with replacement: each row of a batch is any stored row, with the same probability.

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

    def __init__(self, *, replacement: bool = True) -> None:
        check_replacement("RandomSampler", "SamplerWithoutReplacement", replacement=replacement)

    def sample(
        self, storage: Storage, batch_size: int, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Sample indices ``[batch_size]`` int64.

        Raises:
            ContractError: if the storage is empty or `batch_size` is below 1.
        """
        rows = check_rows("RandomSampler", storage, batch_size)
        if generator is None:
            return torch.randint(rows, (batch_size,), device="cpu"), {}
        return torch.randint(rows, (batch_size,), generator=generator, device=generator.device), {}

    def __repr__(self) -> str:
        return "RandomSampler()"
