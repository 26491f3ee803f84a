"""Functions of collected batches: ``postproc=`` of a collector."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self, final

from tensordict import TensorDictBase

from rl.core.errors import ShapeError
from rl.core.keys import NestedKey
from rl.replay._n_step import MultiStepBase

__all__ = ["MultiStep"]


@final
class MultiStep(MultiStepBase):
    """Multi-step transitions of a collected batch: as ``postproc=`` of a collector.

    Replaces each step by the discounted return of n steps and the state after them, as `MultiStepTransform` does, and
    keeps every step: a window that would cross the end of the batch is shorter, and ends with the batch. The target
    ``reward + gamma ** steps_to_next_obs * V(next)`` is valid at each step, but the last steps of a batch have fewer
    rewards. The transitions of `MultiStepTransform`, in a buffer, do not depend on where batches are cut.

    Reads and writes what `MultiStepTransform` does: under ``next`` the n-step returns, ``original_reward`` and the
    entries of the state that is reached; ``steps_to_next_obs``, ``gamma`` and ``nonterminal`` ``[*B, T, 1]``. The batch
    ``[*B, T]`` is in time order, time last; it stays as it is.

    Args:
        gamma: Discount, in [0, 1]; that of the loss.
        n_steps: Largest number of steps, at least 1.
        reward_keys: Argument of `MultiStepTransform`.
        done_key: Argument of `MultiStepTransform`.
        done_keys: Argument of `MultiStepTransform`.
        mask_key: Argument of `MultiStepTransform`.

    Raises:
        ArgumentError: If `n_steps` is not an integer of at least 1, `gamma` is outside [0, 1], or a list of keys is
            empty.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> end = torch.tensor([False, False, True, False, False]).unsqueeze(-1)
        >>> after = TensorDict(reward=torch.ones(5, 1), done=end, obs=torch.arange(1, 6), batch_size=[5])
        >>> batch = MultiStep(gamma=0.5, n_steps=2)(TensorDict(obs=torch.arange(5), next=after, batch_size=[5]))
        >>> batch["next", "reward"].flatten(), batch["next", "obs"]
        (tensor([1.5000, 1.5000, 1.0000, 1.5000, 1.0000]), tensor([2, 3, 3, 5, 5]))
        >>> batch["steps_to_next_obs"].flatten()
        tensor([2, 2, 1, 2, 1])
    """

    def __init__(
        self,
        gamma: float,
        n_steps: int,
        *,
        reward_keys: Iterable[NestedKey] | None = None,
        done_key: NestedKey | None = None,
        done_keys: Iterable[NestedKey] | None = None,
        mask_key: NestedKey | None = None,
    ) -> None:
        super().__init__(
            n_steps, gamma, reward_keys=reward_keys, done_key=done_key, done_keys=done_keys, mask_key=mask_key
        )

    def __call__(self, data: TensorDictBase) -> TensorDictBase:
        """Multi-step transitions ``[*B, T]``.

        Raises:
            ContractError: If an entry is missing, or the steps are not in time order.
            ShapeError: If `data` has no time dimension or no steps, or a flag or reward has another shape.
        """
        steps = data.batch_size[-1] if data.ndim and 0 not in data.batch_size else 0
        out = self.transitions(data, steps) if steps else None
        if out is None:
            raise ShapeError(
                f"MultiStep: expected a batch [*B, T] in time order with at least one step, got {list(data.batch_size)}"
            )
        return out

    def to(self, *args: Any, **kwargs: Any) -> Self:  # noqa: ARG002  those of `torch.nn.Module.to`
        """Return itself: it has no tensors, and what it computes is on the device of the batch."""
        return self

    def __repr__(self) -> str:
        return f"MultiStep(gamma={self.gamma}, n_steps={self.n_steps}, reward_keys={self.reward_keys})"
