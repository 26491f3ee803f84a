"""`LineariseRewards`: weighted sum of several rewards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from rl.core.errors import ShapeError
from rl.core.keys import NestedKey
from rl.core.specs import TensorSpec, Unbounded
from rl.envs.transforms._base import Transform

__all__ = ["LineariseRewards"]


class LineariseRewards(Transform):
    """Weighted sum of the rewards of several objectives: ``[*B, n]`` to ``[*B, 1]``.

    Args:
        in_keys: rewards with one element for each objective.
        out_keys: results; `in_keys` if None.
        weights: one for each objective; ones if None.

    Raises:
        ShapeError: if there is not one weight for each objective.

    Example:
        >>> from tensordict import TensorDict
        >>> batch = TensorDict({"next": {"reward": torch.tensor([[1.0, 2.0]])}}, [1])
        >>> LineariseRewards(["reward"], weights=[1.0, 10.0])(batch)["next", "reward"]
        tensor([[21.]])
    """

    def __init__(
        self,
        in_keys: Iterable[NestedKey],
        out_keys: Iterable[NestedKey] | None = None,
        *,
        weights: Sequence[float] | Tensor | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys)
        self.weights = None if weights is None else torch.as_tensor(weights)

    def _apply(self, value: Tensor) -> Tensor:
        if self.weights is None:
            return value.sum(-1, keepdim=True)
        return (value * self.weights.to(value)).sum(-1, keepdim=True)

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        if self.weights is not None and spec.shape[-1:] != self.weights.shape:
            raise ShapeError(f"{self!r} has {self.weights.numel()} weights for a reward {list(spec.shape)}")
        return Unbounded((*spec.shape[:-1], 1), dtype=spec.dtype, device=spec.device)
