"""`FlattenAction`: actions with fewer dimensions."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from rl.core.keys import NestedKey
from rl.core.specs import TensorSpec
from rl.envs import _foreign
from rl.envs.transforms._base import Transform
from rl.envs.transforms._maps import after_batch, from_the_end, mapped_spec

__all__ = ["FlattenAction"]


@_foreign.flatten_action
class FlattenAction(Transform):
    """Gives the caller an action whose dimensions are flattened.

    Args:
        first_dim: first of the dimensions.
        last_dim: last of the dimensions.
        in_keys_inv: the environment's action; ``["action"]`` if None.
        out_keys_inv: the caller's; `in_keys_inv` if None.
        allow_positive_dim: Whether dimensions may be counted from the first one after the batch of the environment;
            without an environment from the first one of the whole tensor.

    Raises:
        SpecError: if a dimension is not negative and `allow_positive_dim` is false.

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
        *,
        allow_positive_dim: bool = False,
    ) -> None:
        super().__init__(in_keys_inv=["action"] if in_keys_inv is None else in_keys_inv, out_keys_inv=out_keys_inv)
        self.first_dim = from_the_end(first_dim, "FlattenAction", "first_dim", allow_positive_dim=allow_positive_dim)
        self.last_dim = from_the_end(last_dim, "FlattenAction", "last_dim", allow_positive_dim=allow_positive_dim)
        self._sizes = torch.Size()

    def _inverse(self, value: Tensor) -> Tensor:
        dim = self.first_dim if self.first_dim >= 0 else self.last_dim  # which is the flat one
        return value.unflatten(after_batch(dim, self.parent), self._sizes)

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        count = len(spec.shape)
        first, last = (dim + count if dim < 0 else dim for dim in (self.first_dim, self.last_dim))
        self._sizes = spec.shape[first : last + 1]
        return mapped_spec(spec, lambda value: value.flatten(self.first_dim, self.last_dim))
