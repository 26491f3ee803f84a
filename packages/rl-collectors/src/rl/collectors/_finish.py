"""What is done with a batch before it is yielded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase

from rl.collectors._trajectories import split_trajectories

__all__ = ["Finish"]


@dataclass
class Finish:
    """Function from a batch to what is yielded; the arguments are those of `Collector`."""

    postproc: Callable[[TensorDictBase], Any] | None
    hook: Callable[[TensorDictBase], object] | None
    split: bool
    keep_same: bool
    buffer: Any
    version: int | None
    """Number of weight updates; None if it is not written."""
    same: TensorDictBase | None = None

    def __call__(self, batch: TensorDictBase) -> Any:
        """Return what is yielded; None if it goes to the replay buffer."""
        if self.version is not None:
            batch.set("policy_version", torch.full(batch.batch_size, self.version, device=batch.device))
        if self.keep_same:
            self.same = batch = batch if self.same is None else self.same.copy_(batch)
        if self.hook is not None:
            self.hook(batch)
        out: Any = split_trajectories(batch) if self.split else batch
        if self.postproc is not None:
            out = self.postproc(out)
        if self.buffer is None:
            return out
        self.buffer.extend(out)
        return None
