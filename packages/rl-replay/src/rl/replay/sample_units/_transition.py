"""Single rows."""

from __future__ import annotations

from typing import Any, final

from torch import Tensor

from rl.core.interfaces import Storage
from rl.replay.sample_units._base import SampleUnit

__all__ = ["Transition"]


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
