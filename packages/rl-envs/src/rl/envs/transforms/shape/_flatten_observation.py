"""`FlattenObservation`: flattens adjacent dimensions."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from rl.core.keys import NestedKey
from rl.core.specs import TensorSpec
from rl.envs.transforms._base import Transform
from rl.envs.transforms._maps import after_batch, from_the_end, mapped_spec

__all__ = ["FlattenObservation"]


class FlattenObservation(Transform):
    """Flattens adjacent dimensions of an observation.

    Dimensions are negative, counted from the last one, so that a batch of any shape may come in front, unless
    `allow_positive_dim` is true.

    Args:
        first_dim: the first one.
        last_dim: the last one.
        in_keys: entries that it reads; ``observation`` if None.
        out_keys: results; `in_keys` if None.
        allow_positive_dim: Whether dimensions may be counted from the first one after the batch of the environment;
            without an environment from the first one of the whole tensor.

    Raises:
        SpecError: if a dimension is not negative and `allow_positive_dim` is false.

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
        *,
        allow_positive_dim: bool = False,
    ) -> None:
        super().__init__(["observation"] if in_keys is None else in_keys, out_keys)
        self.first_dim = from_the_end(
            first_dim, "FlattenObservation", "first_dim", allow_positive_dim=allow_positive_dim
        )
        self.last_dim = from_the_end(last_dim, "FlattenObservation", "last_dim", allow_positive_dim=allow_positive_dim)

    def _apply(self, value: Tensor) -> Tensor:
        return value.flatten(after_batch(self.first_dim, self.parent), after_batch(self.last_dim, self.parent))

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        return mapped_spec(spec, lambda value: value.flatten(self.first_dim, self.last_dim))
