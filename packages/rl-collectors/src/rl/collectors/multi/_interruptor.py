"""`Interruptor`: ends the batches of collectors in other processes early."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl.core.workers import SharedLeaves

__all__ = ["Interruptor"]


class Interruptor:
    """Flag in shared memory that ends the batch of every ``Collector(interruptor=...)`` within a few steps.

    Make it before the worker processes, and give it to their collectors.

    Example:
        >>> from rl.collectors import Collector
        >>> from rl.core.testing import CountingEnv
        >>> interruptor = Interruptor()
        >>> collector = Collector(CountingEnv, frames_per_batch=100, interruptor=interruptor)
        >>> interruptor.stop_collection()
        >>> collector.collect().numel()
        1
        >>> interruptor.start_collection()
        >>> collector.collect().numel()
        100
    """

    def __init__(self) -> None:
        self._memory = SharedLeaves()
        self._mapped: Tensor | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_memory": self._memory, "_mapped": None}  # each process maps the memory itself

    @property
    def _flag(self) -> Tensor:
        if self._mapped is None:
            self._mapped = self._memory.map({"stopped": ((), torch.uint8)})["stopped"]
        return self._mapped

    def stop_collection(self) -> None:
        """End batches after their next few steps."""
        self._flag.fill_(1)

    def start_collection(self) -> None:
        """Let batches be complete again."""
        self._flag.fill_(0)

    def collection_stopped(self) -> bool:
        """Whether batches end early."""
        return bool(self._flag)

    def close(self) -> None:
        """Close the file of the memory; the flag stays valid. May be called twice."""
        self._memory.close()
