"""Running mean and variance, shared by `VecNorm` and `RewardNorm`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.errors import SpecError
from rl.core.keys import NestedKey
from rl.envs.transforms._base import Transform

__all__ = ["RunningStats", "StatisticsTransform", "share_all"]


class StatisticsTransform(Transform):
    """Base of transforms that update statistics, unless these are frozen."""

    _frozen = False

    def freeze(self) -> Self:
        """Stop updating the statistics."""
        self._frozen = True
        return self

    def unfreeze(self) -> Self:
        """Update the statistics again."""
        self._frozen = False
        return self


class RunningStats:
    """Running mean and variance of tensors, in float64, updated in place.

    Merges batches with Chan, Golub and LeVeque, "Algorithms for computing the sample variance", 1983, eq. 2.1; the
    weight of older values is multiplied by `decay` at each update.

    Args:
        shape: of one value.
        decay: 1 to weight all values equally.
        count: weight of the start values, mean 0 and variance 1.
        device: of the values.
    """

    def __init__(
        self,
        shape: torch.Size,
        decay: float,
        *,
        count: float = 0.0,
        device: torch.device | None = None,
    ) -> None:
        self.decay = decay
        self.tensors: dict[str, Tensor] = {
            "count": torch.full((), count, dtype=torch.float64, device=device),
            "mean": torch.zeros(shape, dtype=torch.float64, device=device),
            "square": torch.full(shape, count, dtype=torch.float64, device=device),
        }

    def share(self, tensors: TensorDictBase | Mapping[str, Tensor]) -> None:
        """Use `tensors` (``count``, ``mean``, ``square``) from now on, in place."""
        self.tensors = {name: tensors[name] for name in ("count", "mean", "square")}

    def share_memory(self) -> None:
        """Move the tensors into memory that other processes see."""
        for tensor in self.tensors.values():
            tensor.share_memory_()

    def update(self, values: Tensor, mask: Tensor | None = None) -> None:
        """Add values ``[*B, *shape]``; with a mask ``[*B, 1]`` those of its elements."""
        shape = self.mean.shape
        # Not -1: the number of rows is ambiguous where an entry has no elements.
        values = values.reshape(values.shape[: values.ndim - len(shape)].numel(), *shape)
        if mask is not None:
            values = values[mask.reshape(-1)]
        n = values.shape[0]
        if not n:
            return
        values = values.to(torch.float64)
        count, mean, square = self.tensors.values()
        batch_mean = values.mean(0)
        delta = batch_mean - mean
        old = count * self.decay
        total = old + n
        square.mul_(self.decay).add_((values - batch_mean).square().sum(0)).add_(delta.square() * (old * n / total))
        mean.add_(delta * (n / total))
        count.copy_(total)

    @property
    def mean(self) -> Tensor:
        """The mean, float64."""
        return self.tensors["mean"]

    def std(self, eps: float) -> Tensor:
        """The standard deviation, at least `eps`; 1 before the first value."""
        count, _, square = self.tensors.values()
        variance = torch.where(count > 0, square / count.clamp_min(1e-12), torch.ones_like(square))
        return variance.sqrt().clamp_min(eps)

    def to(self, device: torch.device | str | int) -> None:
        """Move the tensors."""
        self.tensors = {name: tensor.to(device) for name, tensor in self.tensors.items()}

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of the tensors."""
        return {name: tensor.clone() for name, tensor in self.tensors.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`, in place."""
        for name, tensor in self.tensors.items():
            tensor.copy_(state[name])


def share_all(
    transform: object, stats: Mapping[NestedKey, RunningStats], others: Mapping[NestedKey, RunningStats]
) -> None:
    """Use the tensors of `others` in `stats`.

    Raises:
        SpecError: if the entries or their shapes differ.
    """
    mine, theirs = ({key: list(one.mean.shape) for key, one in group.items()} for group in (stats, others))
    if mine != theirs:
        raise SpecError(
            f"{transform!r} has statistics of {mine}, and cannot share those of {theirs}: normalize the same"
        )
    for key, one in stats.items():
        one.share(others[key].tensors)
