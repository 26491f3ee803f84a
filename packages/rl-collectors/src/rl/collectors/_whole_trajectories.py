"""Batches of whole trajectories (``trajs_per_batch``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.collectors._trajectories import split_trajectories
from rl.core.errors import SpecError

__all__ = ["WholeTrajectories"]


class WholeTrajectories:
    """Trajectories that have ended, in the order of their ends, and the parts of those that run.

    Args:
        count: trajectories of a batch.
        form: ``"padded"`` or ``"cat"``.
        elements: number of environments.

    Raises:
        SpecError: if `form` is another one.
    """

    def __init__(self, count: int, form: str, elements: int) -> None:
        if form not in ("padded", "cat"):
            raise SpecError(f"traj_format must be 'padded' or 'cat', got {form!r}")
        self._count, self._form = count, form
        self._parts: list[list[Any]] = [[] for _ in range(elements)]
        self._ended: list[Any] = []

    @property
    def ready(self) -> bool:
        """Whether there are trajectories for a batch."""
        return len(self._ended) >= self._count

    def add(self, batch: TensorDictBase, ended: Tensor) -> None:
        """Add the steps of a batch.

        Args:
            batch: ``[*B, T]``.
            ended: bool ``[*B, T]``, the last step of a trajectory.
        """
        steps = batch.batch_size[-1]
        rows = batch.reshape(-1, steps)
        begin = [0] * len(self._parts)
        for step, row in ended.reshape(-1, steps).T.nonzero().tolist():
            parts: list[Any] = [*self._parts[row], rows[row, begin[row] : step + 1]]
            self._ended.append(torch.cat(parts))
            self._parts[row], begin[row] = [], step + 1
        for row, first in enumerate(begin):
            if first < steps:
                self._parts[row].append(rows[row, first:])

    def drop_running(self) -> None:
        """Drop the parts of trajectories that have not ended: the environment was reset."""
        self._parts = [[] for _ in self._parts]

    def take(self) -> TensorDictBase | None:
        """Return the next batch; fewer trajectories if no more have ended, None if none has."""
        taken, self._ended = self._ended[: self._count], self._ended[self._count :]
        if not taken:
            return None
        flat: Any = torch.cat(taken)
        flat.names = ["time"]
        return flat if self._form == "cat" else split_trajectories(flat)

    def state(self) -> dict[str, Any]:
        """Return the trajectories and parts."""
        return {"parts": self._parts, "ended": self._ended}

    def load(self, state: Mapping[str, Any] | None, *, exact: bool) -> None:
        """Continue from a state; without the parts unless the environment continues exactly."""
        found = {"parts": [], "ended": []} if state is None else state
        self._ended = list(found["ended"])
        self.drop_running()
        if exact and found["parts"]:
            self._parts = [list(parts) for parts in found["parts"]]
