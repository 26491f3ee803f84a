"""`NextStateReconstructor`: the next observations of a batch that was stored without them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.errors import ContractError, RLError, ShapeError, SpecError
from rl.core.keys import NestedKey, key_str, next_key, unwrap
from rl.envs.transforms._base import Transform
from rl.envs.transforms._specs import Specs

__all__ = ["NextStateReconstructor"]


class NextStateReconstructor(Transform):
    """Writes the next observation of each step: the observation of the following row, if it is the following step.

    For sampled sequences whose stored steps have no next observations; not for environments. A row has a following step
    in the batch if the next row belongs to the same trajectory, and the row itself does not end one; otherwise
    `fill_value` is written. Losses cannot use such rows with NaN: the last step of each slice, and of each episode.

    Reads the observations ``[*B, T, ...]`` and the three keys below, one value for each row; time is the last dimension
    of the batch. Writes ``("next", key)`` in the shape and dtype of each observation.

    Args:
        keys: Keys of the observations, without ``next``.
        traj_key: Key of the trajectory id of each row; None for one trajectory.
        done_key: Key of the end of a trajectory, or of a slice; None for none.
        step_count_key: Key of the number of steps, which has to grow by 1 from a row to the following step; None for
            no such condition.
        fill_value: Value where there is no following step; an integer for integer observations.
        strict: Whether a key that the batch does not have is an error, otherwise its condition is left out.

    Raises:
        ContractError: if a batch has no such observation, or lacks a key while `strict`.
        SpecError: if `fill_value` is NaN for an observation of integers.
        ShapeError: if the batch has no time dimension.
        RLError: if it is appended to an environment.

    Example:
        >>> from tensordict import TensorDict
        >>> batch = TensorDict(observation=torch.arange(4.0), episode=torch.tensor([0, 0, 1, 1]), batch_size=[4])
        >>> NextStateReconstructor(traj_key="episode", done_key=None)(batch)["next", "observation"].tolist()
        [1.0, nan, 3.0, nan]
    """

    def __init__(
        self,
        keys: Iterable[NestedKey] = ("observation",),
        *,
        traj_key: NestedKey | None = ("collector", "traj_ids"),
        done_key: NestedKey | None = ("next", "done"),
        step_count_key: NestedKey | None = None,
        fill_value: float = float("nan"),
        strict: bool = True,
    ) -> None:
        super().__init__(keys)
        self.keys = list(self.in_keys)
        self.traj_key, self.done_key, self.step_count_key = (
            None if key is None else unwrap(key) for key in (traj_key, done_key, step_count_key)
        )
        self.fill_value, self.strict = fill_value, strict

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return a batch with the next observations."""
        if not tensordict.ndim:
            raise ShapeError(f"{self!r} reads a batch [*B, T] in time order, got a single step without batch")
        time, follows = tensordict.ndim - 1, self._follows(tensordict)
        out = tensordict.copy()
        for key in self.keys:
            value = tensordict.get(key, None)
            if value is None:
                raise ContractError(f"{self!r} reads {key_str(key)}, which the batch does not have")
            if not value.is_floating_point() and self.fill_value != self.fill_value:
                raise SpecError(
                    f"{self!r} cannot write NaN as next value of {key_str(key)}, which is {value.dtype}: give"
                    " fill_value="
                )
            mask = follows.to(value.device).reshape(*follows.shape, *[1] * (value.ndim - follows.ndim))
            out.set(next_key(key), value.roll(-1, time).masked_fill(~mask, self.fill_value))
        return out

    def _follows(self, batch: TensorDictBase) -> Tensor:
        """Whether the next row is the following step, bool ``[*B, T]``."""
        follows = torch.ones(batch.batch_size, dtype=torch.bool, device=batch.device)
        follows[..., -1:] = False
        for key, holds in (
            (self.traj_key, lambda one: one.roll(-1, -1) == one),
            (self.done_key, lambda one: ~one.bool()),
            (self.step_count_key, lambda one: one.roll(-1, -1) == one + 1),
        ):
            if key is None:
                continue
            marker = batch.get(key, None)
            if marker is not None:
                follows = follows.to(marker.device) & holds(marker.reshape(*batch.batch_size, -1)[..., 0])
            elif self.strict:
                raise ContractError(
                    f"{self!r} finds the steps that follow by {key_str(key)}, which the batch does not have: name the"
                    " entry with traj_key=, done_key= or step_count_key=, or give None there, or strict=False"
                )
        return follows

    def transform_specs(self, specs: Specs) -> None:
        """Refuse an environment.

        Raises:
            RLError: always.
        """
        del specs
        raise RLError(f"{self!r} reads sequences: append it to the replay buffer, an environment writes 'next' itself")
