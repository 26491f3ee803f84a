"""What is done with a collected batch: its form, `postproc`, hook and replay buffer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tensordict import TensorDictBase

from rl.collectors._pipeline.arguments import count_of
from rl.collectors._trajectories import WholeTrajectories, split_trajectories
from rl.core.errors import SpecError

__all__ = ["Output"]


@dataclass
class Output:
    """The arguments of collectors of the same names.

    Raises:
        SpecError: if two of them exclude each other.
    """

    postproc: Callable[[TensorDictBase], Any] | None
    post_collect_hook: Callable[[Any], Any] | None
    replay_buffer: Any
    extend_buffer: bool = True
    split_trajs: bool | None = None
    trajs_per_batch: int | None = None
    traj_format: str = "padded"
    return_same_td: bool = False
    set_truncated: bool = False
    ends_early: bool = False

    def __post_init__(self) -> None:
        self._same: TensorDictBase | None = None
        if self.traj_format not in ("padded", "cat"):
            raise SpecError(f"traj_format must be 'padded' or 'cat', got {self.traj_format!r}")
        whole = None if self.trajs_per_batch is None else f"trajs_per_batch={self.trajs_per_batch}"
        form = "split_trajs=True" if self.split_trajs else whole
        if whole and self.split_trajs:
            self._exclude(whole, "split_trajs=True", "a batch of whole trajectories is split already")
        if whole and self.set_truncated:
            self._exclude(whole, "set_truncated=True", "the end of a batch ends no trajectory")
        if self.return_same_td and (form or self.ends_early):
            self._exclude(form or "interruptor", "return_same_td=True", "the shape of a batch varies")
        if self.split_trajs and not self.extend_buffer:
            self._exclude("split_trajs=True", "extend_buffer=False", "padding would be stored as steps")

    @staticmethod
    def _exclude(one: str, other: str, why: str) -> None:
        raise SpecError(f"{one} and {other} exclude each other: {why}. Leave one of them out")

    def whole_trajectories(self) -> WholeTrajectories | None:
        """Return what gathers whole trajectories, or None. Those for a replay buffer are not padded."""
        if self.trajs_per_batch is None:
            return None
        form = self.traj_format if self.replay_buffer is None else "cat"
        return WholeTrajectories(count_of("trajs_per_batch", self.trajs_per_batch, 1), form)

    def finish(self, batch: Any) -> Any:
        """Return what is yielded for a batch; None if it goes to a replay buffer."""
        if self.return_same_td:
            self._same = batch = batch if self._same is None else self._same.update_(batch)
        if self.split_trajs:
            batch = split_trajectories(batch)
        if self.postproc is not None:
            batch = self.postproc(batch)
        if self.post_collect_hook is not None:
            self.post_collect_hook(batch)
        if self.replay_buffer is None:
            return batch
        if not self.extend_buffer and batch.ndim > 1:  # single steps, in the order of time
            batch = batch.permute(batch.ndim - 1, *range(batch.ndim - 1)).reshape(-1)
        self.replay_buffer.extend(batch)
        return None
