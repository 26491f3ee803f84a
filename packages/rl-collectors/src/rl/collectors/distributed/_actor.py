"""A collector in an actor of Ray."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from rl.collectors.multi._worker import WorkerBase
from rl.collectors.weights._load import load_weights
from rl.core.workers import packed, unpacked

__all__ = ["RayWorker"]


class RayWorker(WorkerBase):
    """A collector in an actor.

    Args:
        seed: of torch's generator.
        weights: for the first batch, or None.
        version: of these weights.
        parts: further arguments of `WorkerBase`.
    """

    def __init__(self, seed: int, weights: Mapping[str, Any] | None, version: int, **parts: Any) -> None:
        torch.manual_seed(seed)
        super().__init__(**parts)
        self._new = None if weights is None else (weights, version)

    def publish(self, weights: Mapping[str, Any], version: int) -> None:
        """Keep weights for the next batch; called in a thread of its own while a batch is collected."""
        if self._new is None or version > self._new[1]:
            self._new = weights, version

    def collect(self) -> Any:
        """Collect a batch with the newest weights."""
        if self._new is not None and self._new[1] > self._version:
            weights, self._version = self._new
            if isinstance(self._collector.policy, nn.Module):
                load_weights(self._collector.policy, unpacked(weights))
            self._collector.update_policy_weights_()
        return packed(self._stamped())
