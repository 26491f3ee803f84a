"""`FlattenObservation`: flattens adjacent dimensions."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from rl.core.keys import NestedKey
from rl.core.specs import TensorSpec
from rl.envs import _foreign
from rl.envs.transforms._base import Transform
from rl.envs.transforms._maps import from_the_end, mapped_spec

__all__ = ["FlattenObservation"]


@_foreign.positive_dim
class FlattenObservation(Transform):
    """Flattens adjacent dimensions of an observation.

    Dimensions are negative, counted from the last one, so that a batch of any shape may come in front.

    Args:
        first_dim: the first one.
        last_dim: the last one.
        in_keys: entries that it reads; ``observation`` if None.
        out_keys: results; `in_keys` if None.

    Raises:
        SpecError: if a dimension is not negative.

    Example:
        >>> from rl.core.specs import Unbounded
        >>> FlattenObservation(-3, -1)._transform_spec(Unbounded((2, 3, 4))).shape
        torch.Size([24])
    """

    def __init__(
        self,
        first_dim: int,
        last_dim: int,
        in_keys: Iterable[NestedKey] | None = None,
        out_keys: Iterable[NestedKey] | None = None,
    ) -> None:
        super().__init__(["observation"] if in_keys is None else in_keys, out_keys)
        self.first_dim = from_the_end(first_dim, "FlattenObservation", "first_dim")
        self.last_dim = from_the_end(last_dim, "FlattenObservation", "last_dim")

    def _apply(self, value: Tensor) -> Tensor:
        return value.flatten(self.first_dim, self.last_dim)

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        return mapped_spec(spec, self._apply)
