"""`FlattenAction`: actions with fewer dimensions."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from rl.core.keys import NestedKey
from rl.core.specs import TensorSpec
from rl.envs import _foreign
from rl.envs.transforms._base import Transform
from rl.envs.transforms._maps import from_the_end, mapped_spec

__all__ = ["FlattenAction"]


@_foreign.flatten_action
class FlattenAction(Transform):
    """Gives the caller an action whose dimensions are flattened.

    Args:
        first_dim: first of the dimensions, negative.
        last_dim: last of the dimensions, negative.
        in_keys_inv: the environment's action; ``["action"]`` if None.
        out_keys_inv: the caller's; `in_keys_inv` if None.

    Raises:
        SpecError: if a dimension is not negative.

    Example:
        >>> from rl.core.specs import Unbounded
        >>> FlattenAction(-2, -1)._transform_spec(Unbounded((2, 3))).shape
        torch.Size([6])
    """

    def __init__(
        self,
        first_dim: int,
        last_dim: int,
        in_keys_inv: Iterable[NestedKey] | None = None,
        out_keys_inv: Iterable[NestedKey] | None = None,
    ) -> None:
        super().__init__(in_keys_inv=["action"] if in_keys_inv is None else in_keys_inv, out_keys_inv=out_keys_inv)
        self.first_dim = from_the_end(first_dim, "FlattenAction", "first_dim")
        self.last_dim = from_the_end(last_dim, "FlattenAction", "last_dim")
        self._sizes = torch.Size()

    def _inverse(self, value: Tensor) -> Tensor:
        return value.unflatten(self.last_dim, self._sizes)

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        last = len(spec.shape) + self.last_dim + 1
        self._sizes = spec.shape[len(spec.shape) + self.first_dim : last]
        return mapped_spec(spec, lambda value: value.flatten(self.first_dim, self.last_dim))
