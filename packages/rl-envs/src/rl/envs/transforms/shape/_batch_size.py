"""`BatchSizeTransform`: another arrangement of the elements of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl.core.errors import SpecError
from rl.envs import _foreign
from rl.envs.transforms._base import Reset, Step, Transform
from rl.envs.transforms._entries import entry_keys
from rl.envs.transforms._specs import Specs

__all__ = ["BatchSizeTransform"]


@_foreign.batch_size
class BatchSizeTransform(Transform):
    """Reshapes the batch of an environment.

    Args:
        batch_size: the new batch size, with as many elements as the environment's.
        reshape_fn: in its place a function that reshapes a TensorDict, for example ``lambda td: td.reshape(2, -1)``;
            the order of the elements must stay.

    Raises:
        SpecError: unless exactly one is given, or if the number or the order of the elements changes.

    Order: transforms before it have the environment's batch, those after it the new one.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> TransformedEnv(PendulumEnv([6]), BatchSizeTransform([2, 3])).rollout(4).shape
        torch.Size([2, 3, 4])
    """

    leafwise: ClassVar[bool] = True

    def __init__(
        self,
        batch_size: Iterable[int] | None = None,
        reshape_fn: Callable[[TensorDictBase], TensorDictBase] | None = None,
    ) -> None:
        super().__init__()
        if (batch_size is None) == (reshape_fn is None):
            raise SpecError("BatchSizeTransform needs either batch_size or reshape_fn")
        self.batch_size = None if batch_size is None else torch.Size(batch_size)
        self.reshape_fn = reshape_fn

    def _wrap(self, reset: Reset, step: Step) -> tuple[Reset, Step]:
        old, new = self._old, self._new

        def restart(mask: Tensor | None) -> Any:
            given = None if mask is None else mask.reshape(*old, *mask.shape[len(new) :])
            return _reshaped(reset(given), old, new)

        def forward(root: Any) -> Any:
            return _reshaped(step(_reshaped(root, new, old)), old, new)

        return restart, forward

    def transform_specs(self, specs: Specs) -> None:
        """Set the batch size; the specs of an element stay."""
        self._old, self._new = specs.batch_size, self._arranged(specs.batch_size)
        specs.batch_size = self._new

    def _arranged(self, old: torch.Size) -> torch.Size:
        if self.batch_size is not None:
            if self.batch_size.numel() != old.numel():
                raise SpecError(
                    f"{self!r} cannot reshape a batch {tuple(old)} of {old.numel()} elements: it has another number"
                )
            return self.batch_size
        assert self.reshape_fn is not None
        numbers = torch.arange(old.numel()).reshape(old)
        out = self.reshape_fn(TensorDict({"number": numbers}, old))
        if not torch.equal(out["number"].flatten(), numbers.flatten()) or out["number"].shape != out.batch_size:
            raise SpecError(f"{self!r} changes the number or the order of the elements of a batch {tuple(old)}")
        return out.batch_size

    def __repr__(self) -> str:
        return f"BatchSizeTransform({'reshape_fn' if self.batch_size is None else tuple(self.batch_size)})"


def _reshaped(entries: Any, old: torch.Size, new: torch.Size) -> Any:
    if not isinstance(entries, dict):
        return entries.exclude("next").reshape(new) if old else _expanded(entries, new)
    kept = len(old)
    return {key: entries[key].reshape(*new, *entries[key].shape[kept:]) for key in entry_keys(entries)}


def _expanded(entries: TensorDictBase, new: torch.Size) -> TensorDictBase:
    """A single element with a batch of ones."""
    out = entries.exclude("next")
    for _ in new:
        out = out.unsqueeze(0)
    return out
