"""Rewards to go, computed before trajectories are written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, final

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.contract import Key, missing_key_message
from rl.core.errors import ContractError, ShapeError, SpecError
from rl.core.keys import DONE, NEXT, REWARD, NestedKey, key_str, leaf_keys, next_key, unwrap

__all__ = ["Reward2GoTransform"]


@final
class Reward2GoTransform:
    """Discounted sum of the rewards from each step to the end of its trajectory, or of the batch.

    ``reward_to_go[t] = reward[t] + gamma * reward_to_go[t + 1]``, and ``reward[t]`` where the trajectory ends at t:
    Sutton and Barto, "Reinforcement learning: an introduction", 2018, eq. 3.9. Decision transformers are conditioned
    on it.

    Works on `extend`: samples are not changed, because rows that were sampled one by one do not follow each other. To
    compute it on samples of whole trajectories ``[*B, T]``, append it with ``invert=True``. Batches are ``[*B, T]``
    in time order.

    Reads the rewards ``[*B, T, ...]`` and the end flag bool ``[*B, T, 1]``, or of the reward's shape. Writes
    `out_keys`, in the rewards' shapes and dtypes.

    Args:
        gamma: discount, in [0, 1].
        in_keys: rewards; ``[("next", "reward")]`` if None.
        out_keys: entries that are written; ``["reward_to_go"]`` if None.
        done_key: end flag, without ``next``.

    Raises:
        ContractError: if there are not as many `out_keys` as `in_keys`.
        SpecError: if `gamma` is outside [0, 1].

    Example:
        >>> from tensordict import TensorDict
        >>> end = torch.tensor([False, True, False, False]).unsqueeze(-1)
        >>> batch = TensorDict(next=TensorDict(reward=torch.ones(4, 1), done=end, batch_size=[4]), batch_size=[4])
        >>> Reward2GoTransform(gamma=0.5).inv(batch)["reward_to_go"].flatten().tolist()
        [1.5, 1.0, 1.5, 1.0]
    """

    def __init__(
        self,
        gamma: float = 1.0,
        in_keys: Iterable[NestedKey] | None = None,
        out_keys: Iterable[NestedKey] | None = None,
        done_key: NestedKey = DONE,
    ) -> None:
        if not 0 <= gamma <= 1:
            raise SpecError(f"Reward2GoTransform: gamma must be in [0, 1], got {gamma!r}")
        self.gamma: Final = float(gamma)
        self.in_keys: Final[list[NestedKey]] = [(NEXT, REWARD)] if in_keys is None else [unwrap(key) for key in in_keys]
        self.out_keys: Final[list[NestedKey]] = (
            ["reward_to_go"] if out_keys is None else [unwrap(key) for key in out_keys]
        )
        if len(self.in_keys) != len(self.out_keys) or not self.in_keys:
            raise ContractError(
                f"Reward2GoTransform: out_keys has {len(self.out_keys)} keys and in_keys {len(self.in_keys)}: name one"
                " entry to write for each reward"
            )
        self.done_key: Final = next_key(done_key)

    def __call__(self, data: TensorDictBase) -> TensorDictBase:
        """A sample, as it is."""
        return data

    def inv(self, data: TensorDictBase) -> TensorDictBase:
        """`data` ``[*B, T]`` with the rewards to go.

        Raises:
            ContractError: if an entry is absent.
            ShapeError: if `data` has no time dimension, or a flag has another shape.
        """
        if not data.ndim:
            raise ShapeError("Reward2GoTransform: a single step has no time dimension: write batches [*B, T]")
        done, time = self._entry(data, self.done_key), data.ndim - 1
        for key, out in zip(self.in_keys, self.out_keys, strict=True):
            reward = self._entry(data, key)
            try:
                goes_on = (~done.bool()).expand(reward.shape).to(reward.dtype).unbind(time)
            except RuntimeError:
                raise ShapeError(
                    f"Reward2GoTransform: {key_str(self.done_key)} is {list(done.shape)}, expected"
                    f" {[*data.batch_size, 1]} or {list(reward.shape)} for {key_str(key)} {list(reward.shape)}"
                ) from None
            total = torch.zeros_like(reward.select(time, 0))
            sums: list[Tensor] = []
            for now, stays in zip(reversed(reward.unbind(time)), reversed(goes_on), strict=True):
                total = now + self.gamma * stays * total
                sums.append(total)
            data.set(out, torch.stack(sums[::-1], time).to(reward.dtype))
        return data

    @staticmethod
    def _entry(data: TensorDictBase, key: NestedKey) -> Tensor:
        found = data.get(key, None)
        if not isinstance(found, Tensor):
            wanted = Key(key, remedy="Name another entry with in_keys= or done_key=.")
            raise ContractError(missing_key_message("Reward2GoTransform", wanted, leaf_keys(data)))
        return found

    def __repr__(self) -> str:
        return f"Reward2GoTransform(gamma={self.gamma}, in_keys={self.in_keys}, out_keys={self.out_keys})"
