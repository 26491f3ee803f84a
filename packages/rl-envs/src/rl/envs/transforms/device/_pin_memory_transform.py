"""`PinMemoryTransform`: batches in page-locked memory."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase

from rl.core.errors import RLError
from rl.envs.transforms._base import Transform

__all__ = ["PinMemoryTransform"]


class PinMemoryTransform(Transform):
    """Copies a batch to page-locked memory, from which transfers to a GPU do not block. For replay buffers.

    Raises:
        RLError: if torch has no CUDA device.

    Example:
        >>> PinMemoryTransform()
        PinMemoryTransform()
    """

    leafwise = False

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return the batch in page-locked memory."""
        if not torch.cuda.is_available():
            raise RLError("PinMemoryTransform needs a CUDA device, and torch has none; leave it out")
        return tensordict.pin_memory()
